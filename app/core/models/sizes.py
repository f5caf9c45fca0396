"""Sizes in words, the same in every sentence and table. Pure."""

from app.core.settings_meta import GIB, MIB


def size_text(size_bytes: float) -> str:
    """`1.5 GiB`, `212 MiB` or `0`, short enough for a sentence."""
    if abs(size_bytes) >= GIB:
        return f"{size_bytes / GIB:.1f} GiB"
    if size_bytes == 0:
        return "0"
    return f"{size_bytes / MIB:.0f} MiB" if abs(size_bytes) >= MIB else "less than 1 MiB"
