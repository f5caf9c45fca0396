"""Adapters to engines, and the supervisor of their worker processes."""
