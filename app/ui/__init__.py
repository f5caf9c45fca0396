"""Tray and settings panel: the only rooms that know Qt."""
