"""Full-screen programs on Windows, from SHQueryUserNotificationState: what mutes its own notices."""

import ctypes
from typing import Any

from app.core.hardware.full_screen import FullScreen

_BUSY = 2
"""A full-screen program runs, or presentation settings are on."""
_D3D_FULL_SCREEN = 3
_PRESENTATION = 4


def read(shell32: Any = None) -> FullScreen:
    """`shell32` is another than the real one in tests."""
    if shell32 is None:
        shell32 = getattr(ctypes, "windll").shell32  # noqa: B009 - exists on Windows only
    state = ctypes.c_int()
    if shell32.SHQueryUserNotificationState(ctypes.byref(state)) != 0:
        return FullScreen(False, "Windows does not tell whether a full-screen program runs.")
    return FullScreen(state.value in {_BUSY, _D3D_FULL_SCREEN, _PRESENTATION})
