"""Whether a full-screen program has the screen: a game, a film, a talk. Blocking, about a millisecond.

One file for each system behind `read_full_screen`; asked by `router/desktop_pause.py` in an executor,
and only while the user wants to know. Wayland and macOS tell nobody.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FullScreen:
    """`problem` says, in a sentence, why it cannot be told."""

    is_full_screen: bool
    problem: str = ""


def read_full_screen(environ: Mapping[str, str] | None = None) -> FullScreen:
    """What has the screen now."""
    if sys.platform == "win32":
        from app.core.hardware import full_screen_windows

        return full_screen_windows.read()
    if sys.platform == "darwin":
        return FullScreen(False, "Pausing for full-screen programs is not available on macOS.")
    env = os.environ if environ is None else environ
    if env.get("WAYLAND_DISPLAY") or env.get("XDG_SESSION_TYPE") == "wayland":
        # XWayland would show the windows of X11 programs only, and so be wrong half of the time.
        return FullScreen(
            False,
            "Pausing for full-screen programs is not available on Wayland, which does not show one "
            "program the windows of others.",
        )
    display = env.get("DISPLAY", "")
    if not display:
        return FullScreen(
            False, "Pausing for full-screen programs is not available: there is no display."
        )
    from app.core.hardware import full_screen_x11

    return full_screen_x11.read(display)
