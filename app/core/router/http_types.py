"""The nouns of our HTTP server: limits, a request, and the exchange a handler answers it through.

Used by `http.py` (makes them), the dispatcher and the admin part (answer through them). Core loop only.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

HeaderPairs = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bounds that no client can push the server past.

    Attributes:
        header_bytes: request line and headers together; more is a 431.
        header_count: headers of one request; more is a 431.
        body_bytes: a larger body is a 413.
        connections: clients connected at once; the next one gets a 503.
        request_timeout_s: from a request's first byte to its last (plus a second per MiB of body).
        idle_timeout_s: a kept-alive connection without a request.
        stall_timeout_s: a client that does not read what it is sent.
    """

    header_bytes: int = 16 * 1024
    header_count: int = 100
    body_bytes: int = 64 * 1024 * 1024
    connections: int = 256
    request_timeout_s: float = 30.0
    idle_timeout_s: float = 75.0
    stall_timeout_s: float = 300.0


class Request:
    """One request, fully read. Header names are lower-case.

    Attributes:
        method: `GET`, `POST` ...
        path: without the query, as sent (not percent-decoded).
        query: without the question mark; empty for none.
        headers: pairs in the order sent.
        peer: the client's address as text.
        is_admin: the access rules found the admin token on it.
    """

    __slots__ = ("body", "headers", "is_admin", "method", "path", "peer", "query")

    def __init__(
        self,
        method: str,
        path: str,
        query: str,
        headers: list[tuple[bytes, bytes]],
        body: bytes,
        peer: str,
        *,
        is_admin: bool = False,
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.peer = peer
        self.is_admin = is_admin

    def header(self, name: bytes, default: bytes = b"") -> bytes:
        """The first value of `name` (lower-case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return default


class ClientGoneError(Exception):
    """The client left; raised by writes. There is nobody left to tell."""


class Exchange:
    """A request and the answer to it. The handler's task is cancelled when the client leaves.

    An answer is `send(...)` in one piece, or `start(...)`, any number of writes, and `finish()`; or
    `abort()`. Whatever a handler leaves unfinished is aborted when it returns.
    Thread: core loop only.
    """

    request: Request

    @property
    def is_started(self) -> bool:
        """Whether a status line has been given (it cannot be taken back)."""
        raise NotImplementedError

    @property
    def is_finished(self) -> bool:
        raise NotImplementedError

    @property
    def is_gone(self) -> bool:
        """Whether the client has left."""
        raise NotImplementedError

    @property
    def client_gone(self) -> asyncio.Future[None]:
        """Done once the client has left; made at first use."""
        raise NotImplementedError

    @property
    def is_paused(self) -> bool:
        """Whether the client reads slower than it is written to."""
        raise NotImplementedError

    def send(self, status: int, body: bytes, headers: HeaderPairs = ()) -> None:
        """The whole answer; content length is added. Content type is JSON unless in `headers`."""
        raise NotImplementedError

    def start(self, status: int, headers: HeaderPairs = (), length: int | None = None) -> None:
        """Status and headers; without `length` the body is chunked. Sent with the first write."""
        raise NotImplementedError

    def add_header(self, name: bytes, value: bytes) -> None:
        """A header that goes out with whatever answer is given later (X-Coolhead-Decision)."""
        raise NotImplementedError

    def write_nowait(self, piece: bytes) -> None:
        """A piece of the body, without waiting; look at `is_paused` or await `drained()`."""
        raise NotImplementedError

    async def write(self, piece: bytes) -> None:
        """A piece of the body; waits while the client reads slower than we write.

        Raises:
            ClientGoneError: when there is no client any more.
        """
        raise NotImplementedError

    async def drained(self) -> None:
        """Returns once the client has taken most of what was written.

        Raises:
            ClientGoneError: when there is no client any more.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Ends the body cleanly. Never to be called on a broken stream."""
        raise NotImplementedError

    def abort(self) -> None:
        """Resets the connection (RST), so that no client takes a stump for the answer."""
        raise NotImplementedError
