"""Opening the endpoint's sockets: loopback only, and whose the port is when it is taken.

Used by `http.py`. `holder_of` blocks for some 10 ms and is called in an executor.
"""

import errno
import os
import socket

import psutil

from app.core.errors import EndpointError

_ADDRESSES = {
    "127.0.0.1": ("127.0.0.1",),
    "::1": ("::1",),
    "localhost": ("127.0.0.1", "::1"),
}


def addresses_of(host: str) -> tuple[str, ...]:
    """The loopback addresses that `host` means.

    Raises:
        EndpointError: for any other address; models are served to this machine alone.
    """
    found = _ADDRESSES.get(host.strip().lower().strip("[]"))
    if found is None:
        raise EndpointError(
            f"The endpoint cannot listen on {host!r}: only 127.0.0.1, ::1 and localhost are allowed, "
            "because anyone who reaches it can use the models and read what they answer.",
            host=host,
        )
    return found


def open_socket(address: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        OSError: when it cannot be bound.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # A port in TIME_WAIT is ours to take; a live listener still is not.
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            made.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_EXCLUSIVEADDRUSE", -5), 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((address, port))
        made.listen(1024)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def bind_error(address: str, port: int, error: OSError) -> EndpointError:
    """What went wrong with a bind, in words; blocking."""
    if error.errno in {errno.EADDRINUSE, getattr(errno, "WSAEADDRINUSE", -1)}:
        holder = holder_of(port)
        return EndpointError(
            f"Port {port} is in use by {holder or 'another program'}. Stop that program, or set "
            "another port (settings set server.port auto takes any free one).",
            port=port,
            holder=holder,
        )
    if error.errno == errno.EACCES:
        return EndpointError(
            f"Port {port} may not be opened by this user; ports from 1024 up may.", port=port
        )
    return EndpointError(f"{address}:{port} cannot be opened: {error.strerror}.", port=port)


def holder_of(port: int) -> str:
    """The process that listens on `port`, as `name (process 123)`; empty where it cannot be seen."""
    try:
        for found in psutil.net_connections(kind="tcp"):
            if (
                found.status == psutil.CONN_LISTEN
                and found.laddr
                and found.laddr.port == port
                and found.pid
            ):
                return f"{psutil.Process(found.pid).name()} (process {found.pid})"
    except (psutil.Error, OSError):
        return ""
    return ""
