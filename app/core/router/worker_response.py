"""A worker's answer while it arrives, and how it can break. Core loop only.

Made by `worker_client.py`; read by the splice and the dispatcher, in one of three ways: whole, piece by
piece, or piped into a sink without a task in between.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from app.core.errors import WorkerError

BUFFER_BYTES = 256 * 1024
"""Unread pieces that are kept before the worker is held back."""


class BreakPoint(StrEnum):
    """How far a request had come when its connection broke."""

    CONNECT = "connect"
    BEFORE_HEADERS = "before_headers"
    MID_BODY = "mid_body"


class WorkerBroke(WorkerError):
    """The connection to a worker failed; `point` says how far the request had come."""

    code = "worker_broke"

    def __init__(self, message: str, point: BreakPoint) -> None:
        super().__init__(message, point=point.value)
        self.point = point


class BodySink(Protocol):
    """Takes a body piece by piece, straight from the parser. Calls come on the core loop."""

    def on_piece(self, piece: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_break(self, error: WorkerBroke) -> None: ...


class Source(Protocol):
    """The connection a body comes from."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def drop(self) -> None: ...


class WorkerResponse(msgspec.Struct, eq=False):
    """A worker's answer, its body arriving. Close it, or read it to its end.

    Attributes:
        status: HTTP status.
        content_type: as sent, e.g. `application/json`.
        content_length: in bytes, None when chunked.
        is_complete: the whole body has arrived.
        on_whole: called with it once its whole body is here and nothing of it was read, straight from
            the parser, before whoever waits for it has woken.
    """

    status: int
    content_type: bytes
    content_length: int | None
    _source: Source | None
    is_complete: bool = False
    on_whole: "Callable[[WorkerResponse], None] | None" = None
    _pieces: list[bytes] = []
    _buffered_bytes: int = 0
    _sink: BodySink | None = None
    _error: WorkerBroke | None = None
    _waiter: asyncio.Future[None] | None = None
    _is_paused: bool = False

    @property
    def is_event_stream(self) -> bool:
        return self.content_type.startswith(b"text/event-stream")

    async def arrived(self) -> None:
        """Waits for the end of a body that was not read and that the buffer holds.

        Raises:
            WorkerBroke: when the connection breaks first.
        """
        while not self.is_complete:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._error is not None:
            raise self._error

    async def read(self, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """The whole body.

        Raises:
            WorkerBroke: when the connection breaks first, or the body is larger than `max_bytes`.
        """
        taken = self.take()
        if taken is None:
            whole: list[bytes] = []
            size_bytes = 0
            async for piece in self:
                whole.append(piece)
                size_bytes += len(piece)
                if size_bytes > max_bytes:
                    self.close()
                    raise WorkerBroke(
                        f"The worker's answer is larger than {max_bytes:,} bytes.",
                        BreakPoint.MID_BODY,
                    )
            return b"".join(whole)
        return taken

    def take(self) -> bytes | None:
        """The whole body if it has arrived, else None.

        Raises:
            WorkerBroke: when the connection broke.
        """
        if self._error is not None:
            raise self._error
        if not self.is_complete:
            return None
        pieces, self._pieces = self._pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Body pieces as they arrive; raises `WorkerBroke`."""
        try:
            while True:
                pieces, self._pieces = self._pieces, []
                self._buffered_bytes = 0
                if self._is_paused:
                    self.resume()
                for piece in pieces:
                    yield piece
                if self._pieces:
                    continue
                if self._error is not None:
                    raise self._error
                if self.is_complete:
                    return
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
        finally:
            if not self.is_complete:
                self.close()

    def pipe(self, sink: BodySink) -> None:
        """Gives the body to `sink`: what has arrived at once, the rest as it comes."""
        self._sink = sink
        pieces, self._pieces = self._pieces, []
        self._buffered_bytes = 0
        if self._is_paused:
            self.resume()
        for piece in pieces:
            sink.on_piece(piece)
        if self._error is not None:
            sink.on_break(self._error)
        elif self.is_complete:
            sink.on_end()

    def pause(self) -> None:
        """Stops reading from the worker (back-pressure)."""
        if self._source is not None:
            self._is_paused = True
            self._source.pause()

    def resume(self) -> None:
        """Reads on."""
        self._is_paused = False
        if self._source is not None:
            self._source.resume()

    def close(self) -> None:
        """Drops what has not arrived: the worker's connection is closed, which cancels its work."""
        source, self._source = self._source, None
        if source is not None and not self.is_complete:
            source.drop()

    # What the connection calls.

    def on_piece(self, piece: bytes) -> None:
        if self._sink is not None:
            self._sink.on_piece(piece)
            return
        if self._source is None:
            return
        self._pieces.append(piece)
        self._buffered_bytes += len(piece)
        if self._buffered_bytes > BUFFER_BYTES and not self._is_paused:
            self.pause()
        self._wake()

    def on_end(self) -> None:
        self.is_complete = True
        self._source = None
        if self._sink is not None:
            self._sink.on_end()
        elif self.on_whole is not None:
            self.on_whole(self)
        self._wake()

    def on_break(self, error: WorkerBroke) -> None:
        if self._source is None:
            error = WorkerBroke("The answer was given up.", BreakPoint.MID_BODY)
        self._error = error
        self.is_complete = True
        self._source = None
        if self._sink is not None:
            self._sink.on_break(error)
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
