"""Battery or mains on Windows, from GetSystemPowerStatus."""

import ctypes
from typing import Any

from app.core.hardware.power import Power

_OFFLINE = 0


class SystemPowerStatus(ctypes.Structure):
    """SYSTEM_POWER_STATUS."""

    _fields_ = (
        ("ac_line_status", ctypes.c_ubyte),
        ("battery_flag", ctypes.c_ubyte),
        ("battery_life_percent", ctypes.c_ubyte),
        ("system_status_flag", ctypes.c_ubyte),
        ("battery_life_time", ctypes.c_uint32),
        ("battery_full_life_time", ctypes.c_uint32),
    )


def read(kernel32: Any = None) -> Power:
    """`kernel32` is another than the real one in tests."""
    if kernel32 is None:
        kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009 - exists on Windows only
    status = SystemPowerStatus()
    if not kernel32.GetSystemPowerStatus(ctypes.byref(status)):
        return Power(False, "Windows does not tell whether the machine runs on battery.")
    return Power(status.ac_line_status == _OFFLINE)
