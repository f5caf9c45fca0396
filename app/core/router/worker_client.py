"""Our keep-alive client to one worker on loopback: bytes in, bytes out, back-pressure both ways.

Made by the dispatcher for each ready worker, closed with it. Core loop only. There are no deadlines in
here: a prefill may take minutes, and whoever waits cancels.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools

from app.core.router.worker_response import BodySink, BreakPoint, WorkerBroke, WorkerResponse

__all__ = ["BodySink", "BreakPoint", "WorkerBroke", "WorkerClient", "WorkerResponse"]


class WorkerClient:
    """Keep-alive pool to one worker.

    Args:
        host: of the worker, a loopback address.
        port: of the worker.
        key: sent as bearer token; empty for none.
        max_idle: connections kept open without a request (the engine spends a thread on each).
        connect_timeout_s: limit of one connect.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: str = "",
        *,
        max_idle: int = 2,
        connect_timeout_s: float = 5.0,
    ) -> None:
        self.host = host
        self.port = port
        self.max_idle = max_idle
        self.connect_timeout_s = connect_timeout_s
        self.is_closed = False
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        key_line = f"authorization: Bearer {key}\r\n" if key else ""
        self._common = f"host: {host}:{port}\r\n{key_line}".encode()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        headers: bytes = b"",
        on_whole: Callable[[WorkerResponse], None] | None = None,
    ) -> WorkerResponse:
        """Sends one request and waits for status and headers (no deadline: cancel the task).

        A kept-alive connection that turns out to be dead is replaced once, before any byte came.

        Args:
            method: HTTP method.
            path: with its query.
            body: sent as it is.
            content_type: of `body`.
            headers: further header lines, each ending in CRLF.
            on_whole: see `WorkerResponse`.

        Raises:
            WorkerBroke: with `point` CONNECT or BEFORE_HEADERS.
        """
        line = f"{method} {path} HTTP/1.1\r\n".encode("ascii")
        if body or method == "POST":
            head = b"%b%b%bcontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (
                line,
                self._common,
                headers,
                content_type,
                len(body),
            )
        else:
            head = b"%b%b%b\r\n" % (line, self._common, headers)
        while True:
            connection = self._take() or await self._connect()
            connection.on_whole = on_whole
            is_reused = connection.is_reused
            try:
                return await connection.ask(head, body, is_head=method == "HEAD")
            except asyncio.CancelledError:
                connection.drop()
                raise
            except WorkerBroke:
                if not is_reused or connection.has_answered or self.is_closed:
                    raise
                # A stale connection; the others in the pool are likely as old.
                self._drop_idle()

    def close(self) -> None:
        """Closes every connection; running requests break with `WorkerBroke`."""
        self.is_closed = True
        for connection in tuple(self._all):
            connection.drop()
        self._idle.clear()

    def _drop_idle(self) -> None:
        for connection in self._idle:
            connection.drop()
        self._idle.clear()

    def _take(self) -> "_Connection | None":
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def _connect(self) -> "_Connection":
        if self.is_closed:
            raise WorkerBroke("The worker's connections are closed.", BreakPoint.CONNECT)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self.connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self, loop), self.host, self.port
                )
        except TimeoutError as error:
            raise WorkerBroke(
                f"The worker at {self.host}:{self.port} took no connection within "
                f"{self.connect_timeout_s:g} s.",
                BreakPoint.CONNECT,
            ) from error
        except OSError as error:
            raise WorkerBroke(
                f"The worker at {self.host}:{self.port} cannot be reached: {error.strerror or error}.",
                BreakPoint.CONNECT,
            ) from error
        return connection

    # What connections call.

    def put_back(self, connection: "_Connection") -> None:
        """A connection is free again."""
        if self.is_closed or len(self._idle) >= self.max_idle:
            connection.drop()
        else:
            self._idle.append(connection)

    def opened(self, connection: "_Connection") -> None:
        self._all.add(connection)

    def lost(self, connection: "_Connection") -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


class _Connection(asyncio.Protocol):
    """One connection to the worker; carries one request at a time."""

    def __init__(self, client: WorkerClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._transport: Any = None
        self._parser: Any = None
        self._waiter: asyncio.Future[WorkerResponse] | None = None
        self._response: WorkerResponse | None = None
        self._fields: dict[bytes, bytes] = {}
        # The parser's calls go straight into the dict: a function of ours would cost more than all the
        # rest of a head.
        self.on_header = self._fields.__setitem__
        self._has_length = False
        self._is_head = False
        self._is_paused = False
        self.on_whole: Callable[[WorkerResponse], None] | None = None
        self.is_reused = False
        self.has_answered = False
        self.is_usable = False

    def ask(self, head: bytes, body: bytes, *, is_head: bool) -> "asyncio.Future[WorkerResponse]":
        """Writes a request; the future has the answer's head."""
        waiter: asyncio.Future[WorkerResponse] = self._loop.create_future()
        self._waiter = waiter
        self.has_answered = False
        self._is_head = is_head
        if len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return waiter

    def drop(self) -> None:
        """Closes at once; the worker takes that for a cancel."""
        self.is_usable = False
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self.is_usable and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self.is_usable and self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self.is_usable = True
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None and self._response is None:
            # Nobody asked: the worker says goodbye, or speaks out of turn.
            self.drop()
            return
        self.has_answered = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"The worker sent what is not HTTP: {error}.")
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_usable = False
        self._client.lost(self)
        response = self._response
        if response is not None and not self._has_length:
            # Only the end of the connection ends such a body.
            self._response = None
            response.on_end()
            return
        self._break(f"The worker's connection broke: {exc or 'it was closed'}.")

    def _break(self, text: str) -> None:
        waiter, response = self._waiter, self._response
        self._waiter = self._response = None
        if waiter is not None and not waiter.done():
            waiter.set_exception(WorkerBroke(text, BreakPoint.BEFORE_HEADERS))
        elif response is not None:
            response.on_break(WorkerBroke(text, BreakPoint.MID_BODY))

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._fields.clear()

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._fields.clear()
            return
        fields = self._fields
        content_type = fields.get(b"Content-Type")
        length = fields.get(b"Content-Length")
        if content_type is None or length is None:
            fields = {name.lower(): value for name, value in fields.items()}
            content_type = fields.get(b"content-type", b"")
            length = fields.get(b"content-length")
        self._has_length = length is not None or b"transfer-encoding" in fields
        waiter = self._waiter
        self._waiter = None
        length_bytes = None if length is None else int(length)
        if self._is_head or status in {204, 304}:
            length_bytes = 0
            self._has_length = True
        self._response = response = WorkerResponse(status, content_type, length_bytes, self)
        response.on_whole = self.on_whole
        if waiter is not None and not waiter.done():
            waiter.set_result(response)

    def on_body(self, body: bytes) -> None:
        if self._response is not None:
            self._response.on_piece(body)

    def on_message_complete(self) -> None:
        response = self._response
        if response is None:
            return
        self._response = None
        if self._parser.should_keep_alive() and self.is_usable and not self._is_head:
            self.is_reused = True
            self.resume()
            self._client.put_back(self)
        else:
            self.is_usable = False
            self._transport.close()
        response.on_end()
