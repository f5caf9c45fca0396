"""The lines of free memory that the guard acts by and the plan keeps clear of, in one place. Pure.

`guard/lines.py` takes the level ELEVATED from here, `models/limits.py` the desktop's reserve, which
lies above it: a load that just fits must not make the guard unload it again.
"""

MIB = 1024 * 1024
GIB = 1024 * MIB

LARGEST_COUNTED_BYTES = 40 * GIB
"""Percentages are of at most so much RAM: a desktop does not need more because there is more."""

ELEVATED_BYTES = 1536 * MIB
ELEVATED_PERCENT = 12.0
"""Less available than the larger of the two, and idle models are unloaded. A choice for desktops."""

CLEAR_RATIO = 1.25
"""How far a signal must be off its line again before the level falls."""


def elevated_line(total_bytes: int) -> int:
    """Available memory below which the guard is at ELEVATED, in bytes, of `total_bytes` of RAM."""
    return share(ELEVATED_BYTES, ELEVATED_PERCENT, total_bytes)


def share(at_least_bytes: int, percent: float, total_bytes: int) -> int:
    """`percent` of RAM and at least `at_least_bytes`; of RAM beyond 40 GiB nothing is counted."""
    counted = min(total_bytes, LARGEST_COUNTED_BYTES)
    return max(at_least_bytes, int(counted * percent / 100))


def desktop_reserve(total_bytes: int) -> int:
    """RAM that no load may take, in bytes: with so much available the guard's level falls again.

    So a load that just fits neither raises the level nor holds it up, and the desktop may grow by a
    quarter of the line before it does.
    """
    return int(elevated_line(total_bytes) * CLEAR_RATIO)
