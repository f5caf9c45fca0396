"""Starts the guard's process and hands its ends of link and words to the client.

The one place in the client that differs between systems. Blocking for the time of a process start:
the client calls it in an executor.
"""

import asyncio
import contextlib
import multiprocessing.connection
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from app.guard.command import own_environment


class ClientLink(Protocol):
    """The client's end. Thread: the core loop."""

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None: ...
    def receive(self) -> "list[Any]": ...
    def attach(self, loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None]) -> None: ...
    def detach(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class StartedGuard:
    """`words` is where the guard's stderr can be read; the receiver closes it."""

    process: "subprocess.Popen[bytes]"
    link: ClientLink
    words: int


def start_guard(command: Sequence[str], options: str) -> StartedGuard:
    """Raises: OSError when no process can be started; nothing is left open then."""
    if sys.platform == "win32":
        return start_on_windows(command, options)
    from app.guard.link_posix import PosixLink, make_pair

    ours, theirs = make_pair()
    read_end, write_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*command, "--fd", str(theirs.fileno()), "--options", options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=write_end,
            env=own_environment(),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    except OSError:
        ours.close()
        os.close(read_end)
        raise
    finally:
        theirs.close()
        os.close(write_end)
    return StartedGuard(process, PosixLink(ours), read_end)


def start_on_windows(command: Sequence[str], options: str) -> StartedGuard:
    """The same with a message pipe, of which the guard inherits its end."""
    from app.guard.link_windows import WindowsLink
    from app.guard.win32 import win32

    api = win32()
    ours, theirs = multiprocessing.connection.Pipe(duplex=True)
    read_end, write_end = os.pipe()
    handle = int(theirs.fileno())
    try:
        process = api.start(
            [*command, "--fd", str(handle), "--options", options],
            env=own_environment(),
            stderr=write_end,
            inherited=[handle],
        )
    except OSError:
        ours.close()
        os.close(read_end)
        raise
    finally:
        theirs.close()
        os.close(write_end)
    return StartedGuard(process, WindowsLink(ours, api), read_end)


class Words:
    """The guard's stderr, line by line, on the core loop.

    Args:
        descriptor: ours from here on.
        on_line: called on the loop.
    """

    def __init__(self, descriptor: int, on_line: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._on_line = on_line
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._thread: threading.Thread | None = None
        if sys.platform == "win32":
            # Its loop cannot watch a pipe of this kind.
            self._thread = threading.Thread(target=self._read_all, name="guard-words", daemon=True)
            self._thread.start()
        else:
            os.set_blocking(descriptor, False)
            self._loop.add_reader(descriptor, self.read)

    def read(self) -> None:
        """Takes what is there."""
        if self._descriptor < 0 or self._thread is not None:
            return
        try:
            piece = os.read(self._descriptor, 65536)
        except BlockingIOError:
            return
        if not piece:
            self.close()
            return
        self._take(piece)

    def _take(self, piece: bytes) -> None:
        *lines, rest = (self._rest + piece).split(b"\n")
        self._rest = rest[-4096:]
        for line in lines:
            self._on_line(line.decode(errors="replace").rstrip())

    def _read_all(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            while piece := os.read(self._descriptor, 65536):
                self._loop.call_soon_threadsafe(self._take, piece)

    def close(self) -> None:
        if self._descriptor < 0:
            return
        if self._thread is None:
            self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
