"""The link on Windows: a message pipe, with handles duplicated out of the sender's process.

Both ends; a thread each for what the system can only do by waiting. Not yet run on Windows.
"""

import collections
import contextlib
import multiprocessing.connection
import os
import queue
import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from app.guard.link import LINK_READY, LinkClosed, Packet
from app.guard.protocol import PACKET_BYTES
from app.guard.win32 import Win32, win32

if TYPE_CHECKING:
    import asyncio  # the guard process runs without it

MOST_WAITING = 4096
_COUNT = struct.Struct("<IB")
"""Pid of the sender and how many handles follow, 8 bytes each, before the message."""


def pack(data: bytes, pid: int, handles: Sequence[int]) -> bytes:
    return _COUNT.pack(pid, len(handles)) + struct.pack(f"<{len(handles)}Q", *handles) + data


def unpack(packet: bytes) -> tuple[int, tuple[int, ...], bytes]:
    pid, count = _COUNT.unpack_from(packet)
    handles = struct.unpack_from(f"<{count}Q", packet, _COUNT.size)
    return pid, handles, packet[_COUNT.size + 8 * count :]


class WindowsLink:
    """`link.GuardLink`, and the client's end too.

    Thread: the one that made it; a writer thread sends, as a full pipe makes the sender wait.

    Args:
        pipe: a connection, or the handle of one that was inherited.
        api: the system's calls; tests pass their own.
    """

    def __init__(self, pipe: Any, api: Win32 | None = None) -> None:
        self._api = api or win32()
        if isinstance(pipe, int):
            connection: Any = multiprocessing.connection
            pipe = connection.PipeConnection(pipe)
        self._pipe: Any = pipe
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._inbox: collections.deque[bytes] = collections.deque()
        self._writer = threading.Thread(target=self._write, name="link-writer", daemon=True)
        self._writer.start()
        self._reader: threading.Thread | None = None

    def _write(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self._pipe.send_bytes(data)
            except (OSError, ValueError):
                self._is_closed.set()
                return

    def send(self, data: bytes, descriptors: Sequence[int] = (), *, may_drop: bool = False) -> None:
        if self._is_closed.is_set():
            raise LinkClosed("the pipe is closed")
        waiting = self._outbox.qsize()
        if (may_drop and waiting) or waiting >= MOST_WAITING:
            return
        handles = [self._api.handle_of(descriptor) for descriptor in descriptors]
        self._outbox.put(pack(data, os.getpid(), handles))

    def flush(self) -> None:
        """Nothing to do: the writer sends as fast as the other side reads."""

    def receive(self) -> list[Packet]:
        packets: list[Packet] = []
        try:
            while self._inbox:
                packets.append(self._open(self._inbox.popleft()))
            while self._reader is None and self._pipe.poll(0):
                packets.append(self._open(self._pipe.recv_bytes(PACKET_BYTES)))
        except (EOFError, OSError) as error:
            self._is_closed.set()
            if not packets:
                raise LinkClosed(str(error) or "closed by the other side") from error
        if self._is_closed.is_set() and not packets:
            raise LinkClosed("closed by the other side")
        return packets

    def _open(self, raw: bytes) -> Packet:
        pid, handles, data = unpack(raw)
        return Packet(data, self._api.take_descriptors(pid, handles) if handles else ())

    def wait(self, timeout_s: float, handles: Sequence[int]) -> frozenset[int]:
        connection: Any = multiprocessing.connection
        ready = connection.wait([self._pipe, *handles], max(timeout_s, 0.0))
        return frozenset(one if isinstance(one, int) else LINK_READY for one in ready)

    def wait_handles(self, timeout_s: float, handles: Sequence[int]) -> None:
        connection: Any = multiprocessing.connection
        connection.wait(list(handles), max(timeout_s, 0.0))

    def attach(self, loop: "asyncio.AbstractEventLoop", on_readable: Callable[[], None]) -> None:
        """Reads in a thread, as an event loop cannot watch such a pipe."""

        def read_all() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                try:
                    while True:
                        self._inbox.append(self._pipe.recv_bytes(PACKET_BYTES))
                        loop.call_soon_threadsafe(on_readable)
                except (EOFError, OSError):
                    self._is_closed.set()
                    loop.call_soon_threadsafe(on_readable)

        self._reader = threading.Thread(target=read_all, name="link-reader", daemon=True)
        self._reader.start()

    def detach(self) -> None:
        """Nothing to undo: the reader ends with the pipe."""

    def close(self) -> None:
        self._is_closed.set()
        self._outbox.put(None)
        with contextlib.suppress(OSError):
            self._pipe.close()
