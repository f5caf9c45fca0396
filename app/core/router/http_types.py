"""The nouns of our HTTP server: limits, a request, and the exchange a handler answers it through.

Used by `http.py` (makes them), the dispatcher and the admin part (answer through them). Core loop only.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

HeaderPairs = Iterable[tuple[bytes, bytes]]

_STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %s\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_JSON_LINE = b"content-type: application/json\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_WITHOUT_BODY = frozenset({204, 304})


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds that no client can push the server past.

    Attributes:
        header_bytes: request line and headers together; more is a 431.
        header_count: headers of one request; more is a 431.
        body_bytes: a larger body is a 413.
        connections: clients connected at once; the next one takes an idle one's place, or gets a 503.
        spared_s: who has been idle for less than this gives no place up; its request is on the way.
        request_timeout_s: from a request's first byte to its last (plus a second per MiB of body).
        idle_timeout_s: a kept-alive connection without a request.
        stall_timeout_s: a client that does not read what it is sent.
    """

    header_bytes: int = 16 * 1024
    header_count: int = 100
    body_bytes: int = 64 * 1024 * 1024
    connections: int = 256
    spared_s: float = 1.0
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    stall_timeout_s: float = 300.0


class Request(msgspec.Struct, eq=False):
    """One request, fully read. Header names are lower-case.

    Attributes:
        method: `GET`, `POST` ...
        path: without the query, as sent (not percent-decoded).
        query: without the question mark; empty for none.
        headers: pairs in the order sent.
        peer: the client's address as text.
        is_admin: the access rules found the admin token on it.
        is_preflight: a web page of an allowed origin asks whether it may ask; the server answers it.
    """

    method: str
    path: str
    query: str
    headers: list[tuple[bytes, bytes]]
    body: bytes
    peer: str
    is_admin: bool = False
    is_preflight: bool = False

    def header(self, name: bytes, default: bytes = b"") -> bytes:
        """The first value of `name` (lower-case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return default


class ClientGoneError(Exception):
    """The client left; raised by writes. There is nobody left to tell."""


_HEADS: dict[tuple[int, tuple[tuple[bytes, bytes], ...]], bytes] = {}
"""Status lines with headers that were sent before; few, and emptied when they are many."""


def _head_of(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """Status line and headers, without the length and the empty line."""
    parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status]
    parts += [b"%b: %b\r\n" % pair for pair in headers]
    if status not in _WITHOUT_BODY and all(name != b"content-type" for name, _ in headers):
        parts.append(_JSON_LINE)
    head = b"".join(parts)
    if len(_HEADS) >= 256:
        _HEADS.clear()
    _HEADS[status, headers] = head
    return head


class Exchange(msgspec.Struct, eq=False):
    """A request and the answer to it. The handler's task is cancelled when the client leaves.

    An answer is `send(...)` in one piece, or `start(...)`, any number of writes, and `finish()`; or
    `abort()`. Whatever a handler leaves unfinished is aborted when it returns.
    Thread: core loop only.

    Args:
        request: what is asked.
        write: the connection's transport write.
        on_finished: told once, with whether the connection may be kept.
        on_abort: resets the connection.
        is_kept: whether the client wants to keep the connection.
        is_old: the client speaks HTTP/1.0, which has no chunked bodies.

    Attributes:
        task: the handler's, set by the server; cancelling it breaks the answer off.
        pace: called with True when the client falls behind, with False when it has caught up.
    """

    request: Request
    _write: Callable[[bytes], None]
    _on_finished: Callable[[bool], None]
    _on_abort: Callable[[], None]
    is_kept: bool = True
    is_old: bool = False
    task: asyncio.Task[None] | None = None
    status: int = 0
    is_started: bool = False
    is_finished: bool = False
    is_gone: bool = False
    is_paused: bool = False
    pace: Callable[[bool], None] | None = None
    _is_silent: bool = False
    _is_chunked: bool = False
    _head: bytes = b""
    _extra: bytes = b""
    _client_gone: asyncio.Future[None] | None = None
    _waiters: list[asyncio.Future[None]] = []

    @property
    def client_gone(self) -> asyncio.Future[None]:
        """Done once the client has left; made at first use."""
        if self._client_gone is None:
            self._client_gone = asyncio.get_running_loop().create_future()
            if self.is_gone:
                self._client_gone.set_result(None)
        return self._client_gone

    def add_header(self, name: bytes, value: bytes) -> None:
        """A header that goes out with whatever answer is given later."""
        self._extra += b"%b: %b\r\n" % (name, value)

    def send(self, status: int, body: bytes, headers: HeaderPairs = ()) -> None:
        """The whole answer; content length is added. Content type is JSON unless in `headers`."""
        self.start(status, headers, len(body))
        head = self._head
        self._head = b""
        self._write(head if self._is_silent or not body else head + body)
        self._end()

    def start(self, status: int, headers: HeaderPairs = (), length: int | None = None) -> None:
        """Status and headers; without `length` the body is chunked.

        The head leaves with the first write, or at `flush()`.
        """
        if self.is_started:
            raise RuntimeError("an answer was started twice")
        if self.is_gone:
            raise ClientGoneError
        self.is_started = True
        self.status = status
        if type(headers) is not tuple:
            headers = tuple(headers)
        known = _HEADS.get((status, headers))
        if known is None:
            known = _head_of(status, headers)
        if self._extra:
            known += self._extra
        if self.request.method == "HEAD":
            self._is_silent = True
        if status in _WITHOUT_BODY:
            self._is_silent = True
            self._head = known + self._tail()
        elif length is not None:
            self._head = b"%bcontent-length: %d\r\n%b" % (known, length, self._tail())
        elif self.is_old:
            self.is_kept = False
            self._head = known + self._tail()
        else:
            self._is_chunked = not self._is_silent
            self._head = b"%btransfer-encoding: chunked\r\n%b" % (known, self._tail())

    def _tail(self) -> bytes:
        if not self.is_kept:
            return b"connection: close\r\n\r\n"
        return b"connection: keep-alive\r\n\r\n" if self.is_old else b"\r\n"

    def flush(self) -> None:
        """Sends the head now, without waiting for a first write."""
        if self._head:
            head = self._head
            self._head = b""
            self._write(head)

    def write_nowait(self, piece: bytes) -> None:
        """A piece of the body, without waiting; look at `is_paused` or await `drained()`.

        Raises:
            ClientGoneError: when there is no client any more.
        """
        if self.is_gone or self.is_finished:
            raise ClientGoneError
        if not piece or self._is_silent:
            return
        if self._is_chunked:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        if self._head:
            piece = self._head + piece
            self._head = b""
        self._write(piece)

    async def write(self, piece: bytes) -> None:
        """A piece of the body; waits while the client reads slower than we write.

        Raises:
            ClientGoneError: when there is no client any more.
        """
        self.write_nowait(piece)
        if self.is_paused:
            await self.drained()

    async def drained(self) -> None:
        """Returns once the client has taken most of what was written.

        Raises:
            ClientGoneError: when there is no client any more.
        """
        while self.is_paused and not self.is_gone:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self.is_gone:
            raise ClientGoneError

    def finish(self) -> None:
        """Ends the body cleanly. Never to be called on a broken stream."""
        if self.is_finished or self.is_gone:
            return
        last = self._head
        self._head = b""
        if self._is_chunked:
            last += _LAST_CHUNK
        if last:
            self._write(last)
        self._end()

    def abort(self) -> None:
        """Resets the connection (RST), so that no client takes a stump for the answer."""
        if not self.is_finished:
            self.is_finished = True
            self._on_abort()

    def break_off(self, last: bytes) -> None:
        """Writes `last` and closes without ending the body, so that a client sees a broken stream.

        Unlike after `abort()`, `last` is sure to arrive. Where only the end of the connection ends
        the body (HTTP/1.0), the connection is reset after all.
        """
        if self.is_finished or self.is_gone:
            return
        if not self._is_chunked:
            self.abort()
            return
        self.write_nowait(last)
        self.is_kept = False
        self._end()

    def set_paused(self, is_paused: bool) -> None:
        """Called by the connection when the client falls behind or has caught up."""
        self.is_paused = is_paused
        if not is_paused:
            self._wake()
        if self.pace is not None:
            self.pace(is_paused)

    def set_gone(self) -> None:
        """Called by the connection when the client has left."""
        self.is_gone = True
        if self._client_gone is not None and not self._client_gone.done():
            self._client_gone.set_result(None)
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        self.is_finished = True
        self._on_finished(self.is_kept)
