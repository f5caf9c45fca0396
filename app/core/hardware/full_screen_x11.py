"""Full-screen programs on X11: whether the active window carries _NET_WM_STATE_FULLSCREEN.

By libxcb, which is there wherever the tray is. Not by Xlib, whose answer to a window that has just
closed, or to a display that has, is to end the process. A connection of its own for each look, as
nothing else of ours speaks X.
"""

import ctypes
import functools
from typing import Any

from app.core.hardware.full_screen import FullScreen

_ANY_TYPE = 0
_LONGS = 1024


class _Cookie(ctypes.Structure):
    _fields_ = (("sequence", ctypes.c_uint),)


class _ScreenIterator(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("rem", ctypes.c_int), ("index", ctypes.c_int))


class _AtomReply(ctypes.Structure):
    _fields_ = (
        ("response_type", ctypes.c_uint8),
        ("pad", ctypes.c_uint8),
        ("sequence", ctypes.c_uint16),
        ("length", ctypes.c_uint32),
        ("atom", ctypes.c_uint32),
    )


@functools.cache
def _libraries() -> tuple[Any, Any]:
    """Libxcb and libc, their signatures set. Raises: OSError without libxcb."""
    xcb = ctypes.CDLL("libxcb.so.1")
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (ctypes.c_void_p,)
    pointer, uint32 = ctypes.c_void_p, ctypes.c_uint32
    xcb.xcb_connect.restype = pointer
    xcb.xcb_connect.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
    xcb.xcb_connection_has_error.argtypes = (pointer,)
    xcb.xcb_disconnect.argtypes = (pointer,)
    xcb.xcb_disconnect.restype = None
    xcb.xcb_get_setup.restype = pointer
    xcb.xcb_get_setup.argtypes = (pointer,)
    xcb.xcb_setup_roots_iterator.restype = _ScreenIterator
    xcb.xcb_setup_roots_iterator.argtypes = (pointer,)
    xcb.xcb_screen_next.restype = None
    xcb.xcb_screen_next.argtypes = (ctypes.POINTER(_ScreenIterator),)
    xcb.xcb_intern_atom.restype = _Cookie
    xcb.xcb_intern_atom.argtypes = (pointer, ctypes.c_uint8, ctypes.c_uint16, ctypes.c_char_p)
    xcb.xcb_intern_atom_reply.restype = ctypes.POINTER(_AtomReply)
    xcb.xcb_intern_atom_reply.argtypes = (pointer, _Cookie, pointer)
    xcb.xcb_get_property.restype = _Cookie
    xcb.xcb_get_property.argtypes = (pointer, ctypes.c_uint8, *(uint32,) * 5)
    xcb.xcb_get_property_reply.restype = pointer
    xcb.xcb_get_property_reply.argtypes = (pointer, _Cookie, pointer)
    xcb.xcb_get_property_value.restype = pointer
    xcb.xcb_get_property_value.argtypes = (pointer,)
    xcb.xcb_get_property_value_length.argtypes = (pointer,)
    return xcb, libc


def read(display: str) -> FullScreen:
    """The state of the active window of `display`."""
    try:
        xcb, libc = _libraries()
    except OSError:
        return FullScreen(
            False, "Pausing for full-screen programs is not available: libxcb is missing."
        )
    number = ctypes.c_int()
    connection = xcb.xcb_connect(display.encode(), ctypes.byref(number))
    try:
        if xcb.xcb_connection_has_error(connection):
            return FullScreen(False, f"The display {display} does not answer.")
        look = _Look(xcb, libc, connection)
        return FullScreen(look.is_full_screen(number.value))
    finally:
        xcb.xcb_disconnect(connection)


class _Look:
    """One connection's questions; an error, as of a window that is gone, reads as no answer."""

    def __init__(self, xcb: Any, libc: Any, connection: int) -> None:
        self._xcb, self._libc, self._connection = xcb, libc, connection

    def is_full_screen(self, screen: int) -> bool:
        active, state, wanted = (
            self._atom(name)
            for name in (b"_NET_ACTIVE_WINDOW", b"_NET_WM_STATE", b"_NET_WM_STATE_FULLSCREEN")
        )
        if not (active and state and wanted):
            return False  # no window manager has ever named them here
        window = next(iter(self._values(self._root(screen), active)), 0)
        return bool(window) and wanted in self._values(window, state)

    def _root(self, screen: int) -> int:
        roots = self._xcb.xcb_setup_roots_iterator(self._xcb.xcb_get_setup(self._connection))
        for _ in range(screen):
            if roots.rem > 1:
                self._xcb.xcb_screen_next(ctypes.byref(roots))
        # The window's number is the first field of a screen.
        return int(ctypes.cast(roots.data, ctypes.POINTER(ctypes.c_uint32))[0])

    def _atom(self, name: bytes) -> int:
        cookie = self._xcb.xcb_intern_atom(self._connection, 1, len(name), name)
        reply = self._xcb.xcb_intern_atom_reply(self._connection, cookie, None)
        if not reply:
            return 0
        atom = int(reply.contents.atom)
        self._libc.free(reply)
        return atom

    def _values(self, window: int, name: int) -> tuple[int, ...]:
        """A property made of 32-bit numbers; empty where there is none."""
        cookie = self._xcb.xcb_get_property(self._connection, 0, window, name, _ANY_TYPE, 0, _LONGS)
        reply = self._xcb.xcb_get_property_reply(self._connection, cookie, None)
        if not reply:
            return ()
        try:
            size = self._xcb.xcb_get_property_value_length(reply) // 4
            value = self._xcb.xcb_get_property_value(reply)
            return tuple(ctypes.cast(value, ctypes.POINTER(ctypes.c_uint32))[0:size])
        finally:
            self._libc.free(reply)
