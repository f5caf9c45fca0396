"""Coolhead: local language models behind one loopback endpoint, kept from freezing the desktop."""

__version__ = "0.1.0"
