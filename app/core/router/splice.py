"""Carries a worker's answer to the client: bytes untouched, frames peeked at, both ends paced.

Used by the dispatcher, once per request. Core loop only. On the path of a token there is no task: the
worker's parser hands each piece straight to the client's transport.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from app.core.errors import CoolheadError
from app.core.router.http_types import ClientGoneError, Exchange, HeaderPairs
from app.core.router.sse import FramePeek, StreamStats, usage_of_body
from app.core.router.wire import (
    Wire,
    ending_events,
    error_answer,
    error_event,
    keepalive_event,
)
from app.core.router.wire_responses import KeptId, new_response_id
from app.core.router.worker_client import BreakPoint, WorkerBroke, WorkerResponse

__all__ = ["AnswerStream", "StreamStats", "splice_whole"]

KEEPALIVE_S = 15.0
"""Idle limits of clients start at 120 s; their proxies' at 30."""

_SSE_HEADERS = ((b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache"))
_NDJSON_HEADERS = ((b"content-type", b"application/x-ndjson"),)


class AnswerStream:
    """One streamed answer on its way to a client; may be opened before a worker has answered.

    Args:
        exchange: not started yet.
        wire: decides the keep-alive and error events.
        model: name put into events of our own.
        keepalive_s: longest silence towards the client once open.
        on_frame: sees each event of the worker; a reason (`length` or `stop`) that it returns ends the
            answer cleanly after that event, and the worker's connection is closed.
        translate: turns each of the worker's events into the client's wire; without one the bytes go
            through untouched. It is called with b"" at the end.
        worker_wire: what the worker speaks, where that is not `wire`.
    """

    def __init__(
        self,
        exchange: Exchange,
        wire: Wire,
        model: str,
        *,
        keepalive_s: float = KEEPALIVE_S,
        on_frame: Callable[[bytes], str | None] | None = None,
        translate: Callable[[bytes], bytes] | None = None,
        worker_wire: Wire | None = None,
    ) -> None:
        self._exchange = exchange
        self._wire = wire
        self._model = model
        self._keepalive_s = keepalive_s
        self._translate = translate
        self._loop = asyncio.get_running_loop()
        self._now = time.monotonic
        self.stats = StreamStats()
        self._peek = FramePeek(worker_wire or wire, self.stats, on_frame)
        self._response: WorkerResponse | None = None
        self._done: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = 0.0
        self._is_first = True
        self._own_id = ""
        # An event of the dispatcher's that goes out before an ending of ours: which limit it was.
        self.note = b""

    @property
    def is_open(self) -> bool:
        """Whether the 200 is out."""
        return self._exchange.is_started

    @property
    def has_content(self) -> bool:
        """Whether content went out: no fallback after that."""
        return self.stats.first_content_at is not None

    @property
    def is_between_events(self) -> bool:
        """Whether no event has gone out by half, so that another one may follow."""
        return self._peek.is_between_frames

    def open(self, headers: HeaderPairs = ()) -> None:
        """Sends status 200 and headers; keep-alive events follow until the answer ends.

        Raises:
            ClientGoneError: when there is no client any more.
        """
        self._start(headers)
        self._exchange.flush()

    def _start(self, headers: HeaderPairs = ()) -> None:
        own = _NDJSON_HEADERS if self._wire.is_ollama else _SSE_HEADERS
        self._exchange.start(200, (*own, *headers) if headers else own)
        self._sent_at = self._now()
        self._timer = self._loop.call_later(self._keepalive_s, self._keep_alive)

    def _keep_alive(self) -> None:
        exchange = self._exchange
        if exchange.is_gone or exchange.is_finished:
            return
        now = self._now()
        due_s = self._sent_at + self._keepalive_s - now
        if due_s <= 0.005:
            due_s = self._keepalive_s
            self._sent_at = now
            if not exchange.is_paused and self._peek.is_between_frames:
                if self._is_first and self._wire is Wire.RESPONSES:
                    self._own_id = new_response_id()
                    self._translate = KeptId(self._own_id)
                event = keepalive_event(
                    self._wire, self._model, is_first=self._is_first, response_id=self.response_id
                )
                exchange.write_nowait(event)
                self._is_first = False
        self._timer = self._loop.call_later(due_s, self._keep_alive)

    @property
    def response_id(self) -> str:
        """What a Responses stream calls itself: by our first event, else by the worker's."""
        return self._own_id or self._peek.response_id

    async def carry(self, response: WorkerResponse, headers: HeaderPairs = ()) -> None:
        """Pipes a 200 event stream through to its end, opening first where needed.

        Args:
            response: the worker's, not read yet.
            headers: for the client, if it is not open yet.

        Raises:
            WorkerBroke: when the worker's end broke; the client's is still open: `fail` it.
            ClientGoneError: when the client left; the worker's connection is closed by then.
        """
        exchange = self._exchange
        if not exchange.is_started:
            self._start(headers)
        self._response = response
        done: asyncio.Future[None] = self._loop.create_future()
        self._done = done
        exchange.pace = self._pace
        try:
            response.pipe(self)
            if not done.done() and exchange.is_paused:
                response.pause()
            await done
        finally:
            exchange.pace = None
            response.close()
            self._response = self._done = None
            if exchange.is_gone:
                self._stop_timer()
        self._finish()

    async def carry_pieces(self, pieces: AsyncIterator[bytes], headers: HeaderPairs = ()) -> None:
        """The same for a body from elsewhere (a remote target)."""
        exchange = self._exchange
        if not exchange.is_started:
            self._start(headers)
        async for piece in pieces:
            self._pass(piece)
            if self._peek.ended_by:
                break
            if exchange.is_paused:
                await exchange.drained()
        self._finish()

    def fail(self, error: CoolheadError) -> None:
        """Ends a broken answer.

        Before headers: an error answer. Before content: the connection is reset, which agents retry.
        After content: one error event, and the stream is broken off.
        """
        self._stop_timer()
        exchange = self._exchange
        if exchange.is_finished or exchange.is_gone:
            return
        if not exchange.is_started:
            answer = error_answer(self._wire, error)
            exchange.send(answer.status, answer.body, answer.headers)
        elif not self.has_content or not self._peek.is_between_frames:
            exchange.abort()
        elif self.stats.has_error:
            exchange.break_off(b"")
        else:
            exchange.break_off(error_event(self._wire, error))

    # What the worker's response calls.

    def on_piece(self, piece: bytes) -> None:
        done = self._done
        if done is None or done.done():
            return
        try:
            self._pass(piece)
        except ClientGoneError as error:
            done.set_exception(error)
            return
        if self._peek.ended_by:
            done.set_result(None)

    def on_end(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def on_break(self, error: WorkerBroke) -> None:
        if self._done is not None and not self._done.done():
            if self.stats.is_complete:
                self._done.set_result(None)
            else:
                self._done.set_exception(error)

    def _pass(self, piece: bytes) -> None:
        now = self._now()
        kept = self._peek.feed(piece, now)
        self._sent_at = now
        self._is_first = False
        if kept < len(piece):
            piece = piece[:kept]
        if self._translate is not None:
            piece = self._translate(piece)
        self.stats.bytes_sent += len(piece)
        self._exchange.write_nowait(piece)

    def _pace(self, is_paused: bool) -> None:
        response = self._response
        if response is not None:
            if is_paused:
                response.pause()
            else:
                response.resume()

    def _finish(self) -> None:
        """Ends the client's side cleanly, or says that it cannot be."""
        stats, exchange = self.stats, self._exchange
        if self._peek.ended_by:
            reason = self._peek.ended_by
            stats.finish_reason = reason
            stats.is_complete = True
            last = self._peek.last_frame
            end = ending_events(
                self._wire,
                self._model,
                reason,
                last_frame=last,
                tokens=stats.tokens,
                response_id=self.response_id,
            )
            exchange.write_nowait(self.note + end)
        elif not stats.is_complete:
            text = "The engine ended the answer before it was complete."
            raise WorkerBroke(text, BreakPoint.MID_BODY)
        elif self._translate is not None:
            exchange.write_nowait(self._translate(b""))
        self._stop_timer()
        exchange.finish()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def splice_whole(
    response: WorkerResponse, exchange: Exchange, stats: StreamStats | None = None
) -> StreamStats:
    """Carries an answer that is one JSON body; usage is peeked at, into `stats` if given.

    Raises:
        WorkerBroke: when the worker's end broke; nothing has been sent then.
        ClientGoneError: when the client left.
    """
    body = response.take()
    if body is None:
        body = await response.read()
    exchange.send(
        response.status, body, ((b"content-type", response.content_type or b"application/json"),)
    )
    if stats is None:
        stats = StreamStats()
    stats.bytes_sent = len(body)
    stats.is_complete = True
    usage_of_body(body, stats)
    return stats
