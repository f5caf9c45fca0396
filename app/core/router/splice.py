"""Carries a worker's answer to the client: bytes untouched, frames peeked at, both ends paced.

Used by the dispatcher, once per request. Core loop only.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from app.core.errors import CoolheadError
from app.core.router.http_types import Exchange, HeaderPairs
from app.core.router.wire import Wire
from app.core.router.worker_client import WorkerResponse


@dataclass(slots=True)
class StreamStats:
    """What was seen passing by. Times are of the loop's clock; None where it did not happen.

    Attributes:
        tokens: content frames counted while streaming; `completion_tokens` is the engine's own count.
        finish_reason: as the wire calls it; empty until seen.
        is_complete: the wire's own last event (or the whole JSON body) went through.
    """

    bytes_sent: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    first_content_at: float | None = None
    last_content_at: float | None = None
    finish_reason: str = ""
    is_complete: bool = False


class AnswerStream:
    """One streamed answer on its way to a client; may be opened before a worker has answered.

    Args:
        exchange: not started yet.
        wire: decides the keep-alive and error events.
        model: name put into events of our own.
        keepalive_s: longest silence towards the client once open.
        on_frame: sees the data of each event; what it returns (not None) ends the answer with those
            bytes (`wire.ending_events`), and the worker's connection is closed.
    """

    def __init__(
        self,
        exchange: Exchange,
        wire: Wire,
        model: str,
        *,
        keepalive_s: float = 15.0,
        on_frame: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        self.stats = StreamStats()

    @property
    def is_open(self) -> bool:
        """Whether the 200 is out."""
        raise NotImplementedError

    @property
    def has_content(self) -> bool:
        """Whether content went out: no fallback after that."""
        raise NotImplementedError

    def open(self, headers: HeaderPairs = ()) -> None:
        """Sends status 200 and headers; keep-alive events follow until the answer ends."""
        raise NotImplementedError

    async def carry(self, response: WorkerResponse) -> None:
        """Pipes a 200 event stream through to its end, opening first where needed.

        Raises:
            WorkerBroke: when the worker's end broke; the client's is still open: `fail` it.
            ClientGoneError: when the client left; the worker's connection is closed by then.
        """
        raise NotImplementedError

    async def carry_pieces(self, pieces: AsyncIterator[bytes]) -> None:
        """The same for a body from elsewhere (a remote target)."""
        raise NotImplementedError

    def fail(self, error: CoolheadError) -> None:
        """Ends a broken answer: error answer before headers, abort before content, else event + abort."""
        raise NotImplementedError


async def splice_whole(response: WorkerResponse, exchange: Exchange, wire: Wire) -> StreamStats:
    """Carries an answer that is one JSON body; usage is peeked at.

    Raises:
        WorkerBroke: when the worker's end broke; nothing was sent unless `exchange.is_started`.
        ClientGoneError: when the client left.
    """
    raise NotImplementedError
