"""One client's connection: bytes to requests through llhttp, answers back in order, limits kept.

Made by `http.py` for each connection. Core loop only. A request is handed over once it is whole;
while it is answered, further ones on the same connection wait, and nothing more is read if one does.
"""

import asyncio
import math
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import httptools

from app.core.errors import CoolheadError, RequestInvalid
from app.core.router.access import Access, AccessRules
from app.core.router.http_types import Exchange, HttpLimits, Request
from app.core.router.wire import error_answer, wire_of

NEVER = math.inf
_LINGER_S = 2.0
_LINGER_BODIES = 16
_MIB = 1024 * 1024
_RESET = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_VERSIONS = frozenset({"1.1", "1.0"})
_METHODS = {name.encode(): name for name in ("GET", "POST", "HEAD", "OPTIONS", "DELETE", "PUT")}
_UPGRADE_HEADERS = frozenset({b"upgrade", b"connection", b"http2-settings"})


class Server(Protocol):
    """What a connection needs of its server."""

    limits: HttpLimits
    access: AccessRules

    def admit(self, connection: "Connection") -> bool: ...
    def begin(self, connection: "Connection", exchange: Exchange) -> "asyncio.Task[None]": ...
    def forget(self, connection: "Connection") -> None: ...


class _Refused:
    """A queued answer for a request that was not let in; the connection ends with it."""

    __slots__ = ("error", "path")

    def __init__(self, error: CoolheadError, path: str) -> None:
        self.error = error
        self.path = path


class Connection(asyncio.Protocol):
    """A client's connection. `deadline` is read by the server's sweep.

    Thread: core loop only.
    """

    def __init__(self, server: Server, now: Callable[[], float]) -> None:
        self._server = server
        self._now = now
        self._limits = server.limits
        self._transport: Any = None
        self._parser: Any = None
        self._peer = ""
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[Exchange | None] | None = None
        self._queue: deque[Exchange | _Refused] = deque()
        self._is_reading_paused = False
        self._is_write_paused = False
        self._is_ending = False
        self._is_upgrade = False
        self._wants_continue = False
        self._in_request = False
        self._in_head = False
        self._raw_bytes = 0
        self._data_bytes = 0
        self._trailer_bytes = 0
        self._url = b""
        self._path = self._query = self._method = self._version = ""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._access = Access()
        self.deadline = NEVER

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if peer else ""
        self._parser = httptools.HttpRequestParser(self)
        self.deadline = self._now() + self._limits.idle_timeout_s
        if not self._server.admit(self):
            self._refuse_now(
                RequestInvalid(
                    f"{self._limits.connections} clients are connected already.",
                    status=503,
                    retry_after_s=5,
                )
            )

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            # Thrown away, so that a client that reads only once all is sent gets to its answer; the
            # deadline ends it.
            self._raw_bytes += len(data)
            if self._raw_bytes > _LINGER_BODIES * self._limits.body_bytes:
                self._transport.abort()
            return
        if not self._in_request and self._exchange is None:
            self.deadline = self._now() + self._limits.request_timeout_s
        headers = self._headers
        self._data_bytes += len(data)
        self._feed(data)
        if not self._in_request:
            self._data_bytes = 0
        if self._is_ending or not self._in_request or self._headers is not headers:
            # A request that began within this data is counted from the next data on.
            return
        self._raw_bytes += len(data)
        if self._in_head:
            if self._raw_bytes > self._limits.header_bytes:
                self._refuse(_too_large(431, "headers", self._limits.header_bytes))
        elif self._raw_bytes > 2 * self._limits.body_bytes + _MIB:
            self._refuse(_too_large(413, "body", self._limits.body_bytes))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self.deadline = self._now() + self._limits.stall_timeout_s
        if self._exchange is not None:
            self._exchange.set_paused(True)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self.deadline = NEVER if self._exchange else self._now() + self._limits.idle_timeout_s
        if self._exchange is not None:
            self._exchange.set_paused(False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._is_ending = True
        self._queue.clear()
        self._parser = None
        self._server.forget(self)
        exchange, task = self._exchange, self._task
        self._exchange = None
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None
        if exchange is not None:
            exchange.set_gone()
            if task is not None and not exchange.is_finished:
                task.cancel()

    # What the server calls.

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked, answered or still to be written on it."""
        is_busy = self._in_request or self._is_write_paused or self._is_ending
        return not is_busy and self._exchange is None

    async def next_exchange(self, task: "asyncio.Task[None]") -> Exchange | None:
        """Waits for the connection's next request; None when this task is needed no longer.

        One task serves a connection's requests one after another: a task for each would cost more
        than the request's own way through us. A request that comes while the task still tidies up
        after the last one gets a new task.
        """
        if self._is_ending or self._exchange is not None or self._next is not None:
            return None
        waiter: asyncio.Future[Exchange | None] = task.get_loop().create_future()
        self._next = waiter
        self._task = task
        try:
            return await waiter
        except asyncio.CancelledError:
            # A cancel that was meant for the last request came late; the next one is not its prey.
            if self._next is waiter:
                self._next = None
            elif waiter.done() and not waiter.cancelled():
                exchange = waiter.result()
                if exchange is not None and not exchange.is_gone:
                    self._task = self._server.begin(self, exchange)
            raise

    def expire(self) -> None:
        """The deadline passed: a half-sent request is told so, everything else is closed."""
        self.deadline = NEVER
        if self._is_write_paused or self._is_ending or not self._in_request:
            self._transport.abort()
        else:
            self._refuse(
                RequestInvalid(
                    f"The request was not whole after {self._limits.request_timeout_s:g} s.",
                    status=408,
                )
            )

    def close_when_done(self) -> None:
        """Closes now if nothing is being answered, else after the answer."""
        self._queue.clear()
        if self._exchange is None:
            self._is_ending = True
            self._transport.close()
        else:
            self._exchange.is_kept = False

    def reset(self) -> None:
        """Ends the connection with an RST, so that a half-sent answer cannot look whole."""
        self._is_ending = True
        if self._transport.is_closing():
            self._transport.abort()
            return
        handle = self._transport.get_extra_info("socket")
        if handle is not None and handle.fileno() >= 0:
            copy = socket.socket(fileno=os.dup(handle.fileno())) if os.name == "posix" else handle
            try:
                copy.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            finally:
                if copy is not handle:
                    copy.close()
        self._transport.abort()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._in_request = self._in_head = True
        self._url = b""
        self._headers = []
        self._body = []
        self._trailer_bytes = self._body_bytes = self._raw_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            self._headers.append((name.lower(), value))
            return
        self._trailer_bytes += len(name) + len(value) + 4
        if self._trailer_bytes > self._limits.header_bytes and not self._is_ending:
            self._refuse(_too_large(431, "trailers", self._limits.header_bytes))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._raw_bytes = 0
        if self._is_ending:
            return
        parser = self._parser
        method = parser.get_method()
        self._method = _METHODS.get(method) or method.decode("ascii")
        self._version = parser.get_http_version()
        refusal = self._check_head()
        if refusal is not None:
            self._refuse(refusal)
            return
        if parser.should_upgrade():
            self._is_upgrade = True

    def on_body(self, body: bytes) -> None:
        if self._is_ending:
            return
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self._limits.body_bytes:
            self._refuse(_too_large(413, "body", self._limits.body_bytes))

    def on_message_complete(self) -> None:
        if self._is_ending or self._is_upgrade:
            return
        self._in_request = False
        self._wants_continue = False
        body = self._body
        access = self._access
        exchange = Exchange(
            Request(
                self._method,
                self._path,
                self._query,
                self._headers,
                body[0] if len(body) == 1 else b"".join(body),
                self._peer,
                is_admin=access.is_admin,
                is_preflight=access.is_preflight,
            ),
            self._transport.write,
            self._answered,
            self.reset,
            is_kept=self._parser.should_keep_alive(),
            is_old=self._version == "1.0",
        )
        for name, value in access.headers:
            exchange.add_header(name, value)
        if self._exchange is not None:
            self._enqueue(exchange)
        else:
            self._begin(exchange)

    # Our own steps.

    def _feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._decline_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._is_ending:
                self._refuse(RequestInvalid(f"This is not HTTP/1.1: {error}."))

    def _decline_upgrade(self, rest: bytes) -> None:
        """Goes on in HTTP/1.1, as a server may that does not want the offered protocol.

        The parser takes no body with an upgrade, so that it is given the same head without the offer.
        """
        if self._is_ending or not self._is_upgrade:
            return
        self._is_upgrade = False
        if self._method == "CONNECT":
            self._refuse(RequestInvalid("This is no proxy.", status=405))
            return
        lines = [b"%b %b HTTP/1.1" % (self._method.encode(), self._url)]
        lines += [b"%b: %b" % pair for pair in self._headers if pair[0] not in _UPGRADE_HEADERS]
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n")
        if rest and not self._is_ending:
            self._feed(rest)

    def _check_head(self) -> CoolheadError | None:
        limits = self._limits
        headers = self._headers
        if len(headers) > limits.header_count:
            return RequestInvalid(
                f"The request has more than {limits.header_count} headers.", status=431
            )
        if self._data_bytes > limits.header_bytes:
            # All that came is more than a head may take; it may be other requests', or the body's.
            head_bytes = len(self._url) + sum(len(name) + len(value) + 4 for name, value in headers)
            if head_bytes > limits.header_bytes:
                return _too_large(431, "headers", limits.header_bytes)
        if self._version not in _VERSIONS:
            return RequestInvalid("Only HTTP/1.1 and HTTP/1.0 are spoken here.", status=505)
        if not self._url.startswith(b"/") or not self._url.isascii():
            return RequestInvalid("The path of a request must start with '/' and be ASCII.")
        self._path, _, self._query = self._url.decode("ascii").partition("?")
        fields = dict(headers)
        hosts = 1
        if len(fields) != len(headers):
            hosts = sum(name == b"host" for name, _ in headers)
        access = self._access = self._server.access.judge(
            self._method, self._path, fields, self._peer, hosts=hosts
        )
        if access.error is not None:
            return access.error
        length = fields.get(b"content-length")
        if length is not None:
            body_bytes = int(length)
            if body_bytes > limits.body_bytes:
                return _too_large(413, "body", limits.body_bytes)
            self.deadline += body_bytes / _MIB
        if b"expect" in fields and fields[b"expect"].lower() == b"100-continue":
            self._wants_continue = True
        if self._wants_continue and self._exchange is None:
            self._transport.write(_CONTINUE)
            self._wants_continue = False
        return None

    def _begin(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._is_write_paused:
            exchange.is_paused = True
        else:
            self.deadline = NEVER
        waiter = self._next
        self._next = None
        if waiter is not None and not waiter.done():
            waiter.set_result(exchange)
        else:
            self._task = self._server.begin(self, exchange)

    def _enqueue(self, answer: Exchange | _Refused) -> None:
        self._queue.append(answer)
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _answered(self, is_kept: bool) -> None:
        """The current answer is written; on to the next, or wait for one."""
        self._exchange = None
        if not is_kept or self._transport.is_closing():
            self._is_ending = True
            self._queue.clear()
            self._transport.close()
            return
        if not self._queue:
            if self._is_reading_paused:
                self._is_reading_paused = False
                self._transport.resume_reading()
            now = self._now()
            if self._in_request:
                self.deadline = now + self._limits.request_timeout_s
                if self._wants_continue:
                    self._wants_continue = False
                    self._transport.write(_CONTINUE)
            elif not self._is_write_paused:
                self.deadline = now + self._limits.idle_timeout_s
            return
        answer = self._queue.popleft()
        if isinstance(answer, Exchange):
            self._begin(answer)
        else:
            self._refuse_now(answer.error, answer.path)

    def _refuse(self, error: CoolheadError) -> None:
        """Answers with an error and ends the connection; earlier requests are answered first."""
        self._is_ending = True
        self._in_request = False
        path = self._url.partition(b"?")[0].decode("ascii", "replace")
        if self._exchange is not None:
            self._enqueue(_Refused(error, path))
        else:
            self._refuse_now(error, path)

    def _refuse_now(self, error: CoolheadError, path: str = "") -> None:
        """The last answer; what still comes in is thrown away for a while, so that it arrives."""
        self._is_ending = True
        self._raw_bytes = 0
        answer = error_answer(wire_of(path), error)
        request = Request("GET", path, "", [], b"", self._peer)
        exchange = Exchange(
            request, self._transport.write, lambda _kept: None, self.reset, is_kept=False
        )
        exchange.send(answer.status, answer.body, answer.headers)
        self.deadline = self._now() + _LINGER_S
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()


def _too_large(status: int, what: str, limit_bytes: int) -> RequestInvalid:
    return RequestInvalid(f"The request's {what} may take {limit_bytes:,} bytes.", status=status)
