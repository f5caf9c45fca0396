"""One end of the link on Linux and macOS: packets with descriptors, never waiting to send.

Linux keeps packet borders itself (SEQPACKET); macOS has no such local socket, so a stream carries a
length before each packet there. Used by the guard's loop and by the client on the core loop.
"""

import array
import collections
import contextlib
import os
import select
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.guard.link import LINK_READY, LinkClosed, Packet
from app.guard.protocol import PACKET_BYTES

if TYPE_CHECKING:
    import asyncio  # the guard process runs without it

IS_FRAMED = sys.platform == "darwin"
MOST_DESCRIPTORS = 8
MOST_WAITING = 4096
"""Packets kept while the other side does not read (it may be stopped); samples are not kept at all."""
_BUFFER_BYTES = 1024 * 1024
_HEADER = struct.Struct(">IB")
"""Length of the packet and how many descriptors are its own."""
_IN = select.POLLIN | select.POLLHUP | select.POLLERR | select.POLLPRI


@dataclass(slots=True)
class _Outgoing:
    data: bytes
    descriptors: tuple[int, ...]
    may_drop: bool


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, closed in any program that is started."""
    kind = socket.SOCK_STREAM if IS_FRAMED else socket.SOCK_SEQPACKET
    return socket.socketpair(socket.AF_UNIX, kind)


class PosixLink:
    """Thread: the one that made it."""

    def __init__(self, sock: socket.socket, *, is_framed: bool = IS_FRAMED) -> None:
        self._sock = sock
        self._is_framed = is_framed
        self._outbox: collections.deque[_Outgoing] = collections.deque()
        self._inbox = bytearray()
        self._in_descriptors: list[int] = []
        self._poll: select.poll | None = None
        self._polled: list[int] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)

    def send(self, data: bytes, descriptors: Sequence[int] = (), *, may_drop: bool = False) -> None:
        """Sends or keeps for later; the caller keeps its descriptors.

        Raises:
            LinkClosed: when the other side is gone.
        """
        if (may_drop and self._outbox) or len(self._outbox) >= MOST_WAITING:
            return
        framed = _HEADER.pack(len(data), len(descriptors)) + data if self._is_framed else data
        self._outbox.append(_Outgoing(framed, tuple(os.dup(fd) for fd in descriptors), may_drop))
        self.flush()
        if self._outbox and self._loop is not None:
            self._loop.add_writer(self._sock.fileno(), self._flush_from_loop)

    def flush(self) -> None:
        """Sends what waits, as far as the other side takes it.

        Raises:
            LinkClosed: when the other side is gone.
        """
        while self._outbox:
            first = self._outbox[0]
            extra = (
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", first.descriptors))]
                if first.descriptors
                else []
            )
            try:
                sent = self._sock.sendmsg([first.data], extra)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in {55, 105}:  # ENOBUFS on macOS and Linux: full, not gone
                    return
                raise LinkClosed(str(error)) from error
            for fd in first.descriptors:
                os.close(fd)
            first.descriptors = ()
            if self._is_framed and sent < len(first.data):
                first.data = first.data[sent:]
                continue
            self._outbox.popleft()

    def receive(self) -> list[Packet]:
        """Everything that has arrived.

        Raises:
            LinkClosed: when the other side is gone and all it sent was returned before.
        """
        packets: list[Packet] = []
        while True:
            try:
                data, extra, _, _ = self._sock.recvmsg(
                    PACKET_BYTES, socket.CMSG_SPACE(4 * MOST_DESCRIPTORS), _CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return packets
            except OSError as error:
                if packets:
                    return packets
                raise LinkClosed(str(error)) from error
            descriptors: list[int] = []
            for level, kind, payload in extra:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    numbers = array.array("i")
                    numbers.frombytes(payload[: len(payload) - len(payload) % 4])
                    descriptors.extend(numbers)
            if not data:
                if packets:
                    return packets
                raise LinkClosed("closed by the other side")
            if not self._is_framed:
                packets.append(Packet(data, tuple(descriptors)))
                continue
            self._inbox += data
            self._in_descriptors += descriptors
            packets.extend(self._unframe())

    def _unframe(self) -> list[Packet]:
        packets: list[Packet] = []
        while len(self._inbox) >= _HEADER.size:
            length, count = _HEADER.unpack_from(self._inbox)
            end = _HEADER.size + length
            if len(self._inbox) < end:
                break
            packets.append(
                Packet(bytes(self._inbox[_HEADER.size : end]), tuple(self._in_descriptors[:count]))
            )
            del self._inbox[:end]
            del self._in_descriptors[:count]
        return packets

    def wait(self, timeout_s: float, handles: Sequence[int]) -> frozenset[int]:
        """Which of `LINK_READY` and `handles` are ready within the time."""
        own = self._sock.fileno()
        if self._poll is None or self._polled != handles:
            self._poll, self._polled = select.poll(), list(handles)
            for handle in (own, *handles):
                self._poll.register(handle, _IN)
        ready = self._poll.poll(max(timeout_s, 0.0) * 1000)
        return frozenset(LINK_READY if fd == own else fd for fd, _ in ready)

    def attach(self, loop: "asyncio.AbstractEventLoop", on_readable: Callable[[], None]) -> None:
        """Lets an event loop watch this end, for the client: `on_readable` then calls `receive`."""
        self._loop = loop
        loop.add_reader(self._sock.fileno(), on_readable)

    def detach(self) -> None:
        """Ends what `attach` began."""
        if self._loop is not None:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._loop = None

    def _flush_from_loop(self) -> None:
        with contextlib.suppress(LinkClosed):  # the reading side will say so
            self.flush()
            if self._outbox:
                return
        if self._loop is not None:
            self._loop.remove_writer(self._sock.fileno())

    def wait_handles(self, timeout_s: float, handles: Sequence[int]) -> None:
        """The same for `handles` alone, for when the link is closed."""
        poll = select.poll()
        for handle in handles:
            poll.register(handle, _IN)
        poll.poll(max(timeout_s, 0.0) * 1000)

    def close(self) -> None:
        for outgoing in self._outbox:
            for fd in outgoing.descriptors:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._outbox.clear()
        self._sock.close()


_CLOEXEC: int = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
