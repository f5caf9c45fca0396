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
_MIB = 1024 * 1024
_RESET = struct.pack("ii", 1, 0)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
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
        self._queue: deque[Exchange | _Refused] = deque()
        self._is_reading_paused = False
        self._is_write_paused = False
        self._is_ending = False
        self._is_upgrade = False
        self._wants_continue = False
        self._in_request = False
        self._in_head = False
        self._raw_bytes = 0
        self._head_bytes = 0
        self._url = b""
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
            self._raw_bytes += len(data)
            if self._raw_bytes > self._limits.body_bytes:
                self._transport.abort()
            return
        if not self._in_request and self._exchange is None:
            self.deadline = self._now() + self._limits.request_timeout_s
        headers = self._headers
        self._feed(data)
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
        if exchange is not None:
            exchange.set_gone()
            if task is not None and not exchange.is_finished:
                task.cancel()

    # What the server calls.

    @property
    def is_answering(self) -> bool:
        return self._exchange is not None

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
        self._head_bytes = self._body_bytes = self._raw_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._in_head:
            self._headers.append((name.lower(), value))
        elif self._head_bytes > self._limits.header_bytes and not self._is_ending:
            self._refuse(_too_large(431, "trailers", self._limits.header_bytes))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._raw_bytes = 0
        if self._is_ending:
            return
        refusal = self._check_head()
        if refusal is not None:
            self._refuse(refusal)
            return
        if self._parser.should_upgrade():
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
        url = self._url.decode("ascii")
        path, _, query = url.partition("?")
        parser = self._parser
        exchange = Exchange(
            Request(
                parser.get_method().decode("ascii"),
                path,
                query,
                self._headers,
                body[0] if len(body) == 1 else b"".join(body),
                self._peer,
                is_admin=self._access.is_admin,
                is_preflight=self._access.is_preflight,
            ),
            self._transport.write,
            self._answered,
            self.reset,
            is_kept=parser.should_keep_alive(),
            is_old=parser.get_http_version() == "1.0",
        )
        for name, value in self._access.headers:
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
        if self._parser.get_method() == b"CONNECT":
            self._refuse(RequestInvalid("This is no proxy.", status=405))
            return
        lines = [b"%b %b HTTP/1.1" % (self._parser.get_method(), self._url)]
        lines += [b"%b: %b" % pair for pair in self._headers if pair[0] not in _UPGRADE_HEADERS]
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(lines) + b"\r\n\r\n")
        if rest and not self._is_ending:
            self._feed(rest)

    def _check_head(self) -> CoolheadError | None:
        limits = self._limits
        if self._head_bytes > limits.header_bytes:
            return _too_large(431, "headers", limits.header_bytes)
        if len(self._headers) > limits.header_count:
            return RequestInvalid(
                f"The request has more than {limits.header_count} headers.", status=431
            )
        if self._parser.get_http_version() not in {"1.1", "1.0"}:
            return RequestInvalid("Only HTTP/1.1 and HTTP/1.0 are spoken here.", status=505)
        if not self._url.startswith(b"/") or not self._url.isascii():
            return RequestInvalid("The path of a request must start with '/' and be ASCII.")
        path = self._url.partition(b"?")[0].decode("ascii")
        self._access = self._server.access.judge(
            self._parser.get_method().decode("ascii"), path, self._headers, self._peer
        )
        if self._access.error is not None:
            return self._access.error
        for name, value in self._headers:
            if name == b"content-length":
                if int(value) > limits.body_bytes:
                    return _too_large(413, "body", limits.body_bytes)
                self.deadline += int(value) / _MIB
            elif name == b"expect" and value.lower() == b"100-continue":
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
        self._task = self._server.begin(self, exchange)

    def _enqueue(self, answer: Exchange | _Refused) -> None:
        self._queue.append(answer)
        if not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _answered(self, is_kept: bool) -> None:
        """The current answer is written; on to the next, or wait for one."""
        self._exchange = self._task = None
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
