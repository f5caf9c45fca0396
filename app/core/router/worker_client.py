"""Our keep-alive client to one worker on loopback: bytes in, bytes out, back-pressure both ways.

Made by the dispatcher for each ready worker, closed with it. Core loop only.
"""

from collections.abc import AsyncIterator
from enum import StrEnum
from typing import Protocol

from app.core.errors import WorkerError


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


class WorkerResponse:
    """A worker's answer, its body arriving. Close it, or read it to its end.

    Attributes:
        status: HTTP status.
        content_type: as sent, e.g. `application/json`.
        content_length: in bytes, None when chunked.
    """

    status: int
    content_type: bytes
    content_length: int | None

    @property
    def is_event_stream(self) -> bool:
        raise NotImplementedError

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has arrived."""
        raise NotImplementedError

    async def read(self, max_bytes: int = 64 * 1024 * 1024) -> bytes:
        """The whole body.

        Raises:
            WorkerBroke: when the connection breaks first, or the body is larger than `max_bytes`.
        """
        raise NotImplementedError

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Body pieces as they arrive; raises `WorkerBroke`."""
        raise NotImplementedError

    def pipe(self, sink: BodySink) -> None:
        """Gives the body to `sink`: what has arrived at once, the rest as it comes."""
        raise NotImplementedError

    def pause(self) -> None:
        """Stops reading from the worker (back-pressure)."""
        raise NotImplementedError

    def resume(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Drops what has not arrived: the worker's connection is closed, which cancels its work."""
        raise NotImplementedError


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

    async def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        content_type: bytes = b"application/json",
        headers: bytes = b"",
    ) -> WorkerResponse:
        """Sends one request and waits for status and headers (no deadline: cancel the task).

        A kept-alive connection that turns out to be dead is replaced once, before any byte came.

        Args:
            method: HTTP method.
            path: with its query.
            body: sent as it is.
            content_type: of `body`.
            headers: further header lines, each ending in CRLF.

        Raises:
            WorkerBroke: with `point` CONNECT or BEFORE_HEADERS.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Closes every connection; running requests break with `WorkerBroke`."""
        raise NotImplementedError
