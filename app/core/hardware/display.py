"""Whether a window system can be reached, found out without Qt: a failed start of Qt aborts the process.

Called by `composition` before it chooses between tray and headless, and by `doctor`; any thread.
"""

import ctypes
import importlib.util
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

_CONNECT_S = 2.0
_X11_PORT = 6000


def display_available(environ: Mapping[str, str] | None = None) -> str | None:
    """Why no tray can be shown here, as a sentence; None when one can."""
    env = os.environ if environ is None else environ
    if importlib.util.find_spec("PySide6") is None:
        return "PySide6 is not installed, so there is no tray; install PySide6-Essentials."
    if sys.platform in {"win32", "darwin"}:
        return None
    platform = env.get("QT_QPA_PLATFORM", "").partition(":")[0].partition(";")[0]
    if platform and platform not in {"xcb", "wayland"}:
        return None  # the user knows better: offscreen, vnc, eglfs ...
    wayland, x11 = env.get("WAYLAND_DISPLAY", ""), env.get("DISPLAY", "")
    if wayland and platform != "xcb" and _wayland_answers(wayland, env.get("XDG_RUNTIME_DIR", "")):
        return None
    if not x11 or platform == "wayland":
        return "There is no display: neither DISPLAY nor WAYLAND_DISPLAY leads to one."
    if not _x11_answers(x11):
        return f"The display {x11} does not answer."
    return _missing_library()


def _wayland_answers(name: str, folder: str) -> bool:
    return _connects(str(Path(folder) / name))


def _x11_answers(name: str) -> bool:
    host, _, rest = name.rpartition(":")
    number = rest.partition(".")[0]
    if name.startswith("/"):
        return _connects(name.partition(".")[0]) or _connects(name)
    if not number.isdigit():
        return False
    if host and host != "unix":
        try:
            address = (host.strip("[]"), _X11_PORT + int(number))
            socket.create_connection(address, _CONNECT_S).close()
        except OSError:
            return False
        return True
    path = f"/tmp/.X11-unix/X{number}"  # noqa: S108 - where every X server listens
    return _connects(f"\0{path}") or _connects(path)


def _connects(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_CONNECT_S)
        try:
            link.connect(path)
        except OSError:
            return False
    return True


def _missing_library() -> str | None:
    """Qt's X11 part needs one library that its wheel lacks, and aborts the process without it."""
    try:
        ctypes.CDLL("libxcb-cursor.so.0")
    except OSError:
        return (
            "Qt needs libxcb-cursor to show anything here. Install it "
            "(Debian and Ubuntu: libxcb-cursor0; Fedora: xcb-util-cursor)."
        )
    return None
