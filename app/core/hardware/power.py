"""Whether the machine runs on battery. Blocking, a millisecond or two (macOS: some tens).

One file for each system behind `read_power`; asked by `router/desktop_pause.py` in an executor, and
only while the user wants to know.
"""

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Power:
    """`problem` says, in a sentence, why it cannot be told."""

    is_on_battery: bool
    problem: str = ""


def read_power() -> Power:
    """What the machine is fed from now."""
    if sys.platform == "win32":
        from app.core.hardware import power_windows

        return power_windows.read()
    if sys.platform == "darwin":
        from app.core.hardware import power_macos

        return power_macos.read()
    from app.core.hardware import power_linux

    return power_linux.read()
