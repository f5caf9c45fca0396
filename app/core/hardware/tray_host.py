"""Whether the desktop has a place for tray icons, found out without Qt. Blocking, some milliseconds.

Asked by `doctor`. Two kinds of panels show icons: those that own the tray's selection on X11, and
those that own a name on the session bus (KDE, and what follows it; on GNOME with an extension).
"""

import ctypes
import os
import socket
import struct
import sys
from collections.abc import Mapping

WATCHER = "org.kde.StatusNotifierWatcher"
_BUS = "org.freedesktop.DBus"
_TIMEOUT_S = 2.0
_REPLY = 2
_MOST_MESSAGES = 16
_MOST_BYTES = 1 << 20


def has_tray_host(environ: Mapping[str, str] | None = None) -> bool:
    """Whether an icon would be shown; where it would not, our small window is."""
    if sys.platform in {"win32", "darwin"}:
        return True
    env = os.environ if environ is None else environ
    return _has_bus_name(env, WATCHER) or _has_x11_tray(env.get("DISPLAY", ""))


class _Reply(ctypes.Structure):
    """How xcb answers both questions asked here: a head, and one number."""

    _fields_ = (
        ("response_type", ctypes.c_uint8),
        ("pad", ctypes.c_uint8),
        ("sequence", ctypes.c_uint16),
        ("length", ctypes.c_uint32),
        ("value", ctypes.c_uint32),
    )


class _Cookie(ctypes.Structure):
    _fields_ = (("sequence", ctypes.c_uint),)


def _has_x11_tray(display: str) -> bool:
    """By libxcb: Xlib's answer to a display that goes away is to end the process."""
    if not display:
        return False
    try:
        xcb = ctypes.CDLL("libxcb.so.1")
    except OSError:
        return False
    libc = ctypes.CDLL(None)
    pointer = ctypes.c_void_p
    libc.free.argtypes = (pointer,)
    xcb.xcb_connect.restype = pointer
    xcb.xcb_connect.argtypes = (ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))
    xcb.xcb_connection_has_error.argtypes = (pointer,)
    xcb.xcb_disconnect.argtypes = (pointer,)
    xcb.xcb_intern_atom.restype = xcb.xcb_get_selection_owner.restype = _Cookie
    xcb.xcb_intern_atom.argtypes = (pointer, ctypes.c_uint8, ctypes.c_uint16, ctypes.c_char_p)
    xcb.xcb_get_selection_owner.argtypes = (pointer, ctypes.c_uint32)
    for name in ("xcb_intern_atom_reply", "xcb_get_selection_owner_reply"):
        ask = getattr(xcb, name)
        ask.restype = ctypes.POINTER(_Reply)
        ask.argtypes = (pointer, _Cookie, pointer)

    def value(reply: "ctypes._Pointer[_Reply]") -> int:
        if not reply:
            return 0
        found = int(reply.contents.value)
        libc.free(reply)
        return found

    screen = ctypes.c_int()
    connection = xcb.xcb_connect(display.encode(), ctypes.byref(screen))
    try:
        if xcb.xcb_connection_has_error(connection):
            return False
        selection = f"_NET_SYSTEM_TRAY_S{screen.value}".encode()
        asked = xcb.xcb_intern_atom(connection, 1, len(selection), selection)
        atom = value(xcb.xcb_intern_atom_reply(connection, asked, None))
        if not atom:
            return False
        asked = xcb.xcb_get_selection_owner(connection, atom)
        return value(xcb.xcb_get_selection_owner_reply(connection, asked, None)) != 0
    finally:
        xcb.xcb_disconnect(connection)


def _has_bus_name(env: Mapping[str, str], name: str) -> bool:
    """Asks the session bus, in as much of its protocol as one question takes."""
    path = _bus_path(env)
    if not path:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.settimeout(_TIMEOUT_S)
        try:
            link.connect(path)
            link.sendall(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
            if not link.recv(256).startswith(b"OK"):
                return False
            link.sendall(b"BEGIN\r\n" + _call(1, "Hello") + _call(2, "NameHasOwner", name))
            _reply_to(link)
            return bool(struct.unpack("<I", _reply_to(link)[:4])[0])
        except (OSError, struct.error):
            return False


def _bus_path(env: Mapping[str, str]) -> str:
    """Of the first address on this machine; an abstract one begins with a zero byte."""
    for address in env.get("DBUS_SESSION_BUS_ADDRESS", "").split(";"):
        kind, _, rest = address.partition(":")
        parts = dict(part.split("=", 1) for part in rest.split(",") if "=" in part)
        if kind == "unix" and parts.get("path"):
            return parts["path"]
        if kind == "unix" and parts.get("abstract"):
            return "\0" + parts["abstract"]
    folder = env.get("XDG_RUNTIME_DIR", "")
    return f"{folder}/bus" if folder else ""


def _call(serial: int, member: str, argument: str = "") -> bytes:
    """A method call to the bus itself, with one text or none."""
    body = _text(argument) if argument else b""
    fields = b""
    heads = [(1, "o", "/org/freedesktop/DBus"), (2, "s", _BUS), (3, "s", member), (6, "s", _BUS)]
    if argument:
        heads.append((8, "g", "s"))
    for code, kind, text in heads:
        fields += bytes(-len(fields) % 8) + struct.pack("<BB", code, 1) + kind.encode() + b"\0"
        if kind == "g":
            fields += struct.pack("<B", len(text)) + text.encode() + b"\0"
        else:
            fields += bytes(-len(fields) % 4) + _text(text)
    head = struct.pack("<cBBBIII", b"l", 1, 0, 1, len(body), serial, len(fields)) + fields
    return head + bytes(-len(head) % 8) + body


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<I", len(raw)) + raw + b"\0"


def _reply_to(link: socket.socket) -> bytes:
    """The body of the next reply; signals between are passed over. Raises: OSError, struct.error."""
    for _ in range(_MOST_MESSAGES):
        order, kind, _, _, body_bytes, _, field_bytes = struct.unpack("<cBBBIII", _read(link, 16))
        if order != b"l" or body_bytes + field_bytes > _MOST_BYTES:
            break
        _read(link, field_bytes + -field_bytes % 8)
        body = _read(link, body_bytes)
        if kind == _REPLY:
            return body
    raise ConnectionError("the bus gave no answer")


def _read(link: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = link.recv(count - len(found))
        if not piece:
            raise ConnectionError("the bus hung up")
        found += piece
    return found
