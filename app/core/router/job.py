"""One request on its way: what it is, how far it has come, and how it is told of a failure.

Made by the dispatcher for each request and thrown away with it. Core loop only.
"""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from app.core.errors import ContextExceeded, CoolheadError
from app.core.router.decision import Decision
from app.core.router.features import RequestFeatures
from app.core.router.gate import fingerprint
from app.core.router.http_types import Exchange
from app.core.router.limits import AnswerLimits, LimitHit, LimitWatch
from app.core.router.ollama import Lines, tagged
from app.core.router.request_log import RequestLine
from app.core.router.splice import AnswerStream, StreamStats
from app.core.router.templated import COMPLETIONS_PATH, ChatEvents, chat_answer
from app.core.router.wire import Wire, error_answer, keepalive_event, status_of
from app.core.router.worker_response import WorkerResponse

HEADERS_HELD_S = 20.0  # one of nine clients gives up after 120 s without headers; proxies sooner


class Job:
    """Thread: core loop only.

    Attributes:
        path: where it goes on, query included, without `/model/<name>` in front.
        body: what is sent on; the client's own bytes unless a rule or a limit changes them.
        target: the name that is being tried; `model_id` the model or remote name that answers.
        answer: the whole answer that `send_whole` has sent.
        fallbacks: reasons that were used up.
        worker_wire: what is spoken to whoever answers; the client's wire but for chat templates.
        whole: turns a whole answer from `worker_wire` into the client's wire; None for as it is.
        stream: the answer on its way, where the client wants a stream.
        kill_error: set by whoever cancels the task for a reason of ours.
    """

    def __init__(
        self,
        exchange: Exchange,
        wire: Wire,
        features: RequestFeatures,
        decision: Decision,
        limits: AnswerLimits,
    ) -> None:
        self.exchange = exchange
        self.wire = wire
        self.features = features
        self.decision = decision
        self.limits = limits
        query = exchange.request.query
        self.path = f"{decision.path}?{query}" if query else decision.path
        self.body = features.body
        self.worker_wire = wire
        self.whole: Callable[[bytes], bytes] | None = None
        translate: Callable[[bytes], bytes] | None = None
        action = decision.action
        if action.chat_template is not None and wire is Wire.CHAT:
            self.path = COMPLETIONS_PATH
            self.worker_wire = Wire.COMPLETIONS
            self.whole = chat_answer
            translate = ChatEvents()
        elif wire.is_ollama:
            lines = Lines(wire, tagged(features.model))
            self.worker_wire = features.wire
            self.whole = lines.whole
            translate = lines
        self.target = action.target
        self.model_id = ""
        self.answer: bytes | None = None
        self.fallbacks: list[str] = []
        self.stats = StreamStats()
        self.limit_hit: LimitHit | None = None
        self.kill_error: CoolheadError | None = None
        self.outcome = "ok"
        self.status = 0
        self.is_cached = False
        self.started_s = time.monotonic()
        self.granted_s = 0.0
        self.task = exchange.task
        self.stream: AnswerStream | None = None
        self._watch: LimitWatch | None = None
        self._hold: asyncio.TimerHandle | None = None
        self._fingerprint = b""
        if features.is_stream:
            if limits.is_any:
                self._watch = LimitWatch(limits, self.worker_wire, self.started_s)
            on_frame = self._on_frame if self._watch is not None else None
            self.stream = AnswerStream(
                exchange,
                wire,
                features.model,
                on_frame=on_frame,
                translate=translate,
                worker_wire=self.worker_wire,
            )
            self.stats = self.stream.stats
            loop = asyncio.get_running_loop()
            self._hold = loop.call_later(HEADERS_HELD_S, self._open)

    @property
    def fingerprint(self) -> bytes:
        if not self._fingerprint:
            self._fingerprint = fingerprint(self.path, self.features.body)
        return self._fingerprint

    @property
    def has_content(self) -> bool:
        """Whether something of an answer is out, so that no other target may be tried."""
        stream = self.stream
        if stream is not None:
            is_clean = stream.is_between_events and not self.exchange.is_finished
            return stream.has_content or not is_clean
        return self.exchange.is_started

    def _open(self) -> None:
        """Headers were held long enough; keep-alive events follow."""
        stream = self.stream
        if stream is not None and not stream.is_open and not self.exchange.is_gone:
            stream.open()

    def _on_frame(self, frame: bytes) -> str | None:
        assert self._watch is not None
        hit = self._watch.feed(frame, time.monotonic())
        if hit is None:
            return None
        self.limit_hit = hit
        if self.stream is not None:
            self.stream.note = limit_note(self.wire, self.model_id, hit, self.stream.response_id)
        return "length"

    def send_whole(self, response: WorkerResponse) -> None:
        """Sends the worker's answer on at once, before this request's task has woken.

        What it cannot send is left to the task.
        """
        exchange, stats = self.exchange, self.stats
        if response.status != 200 or exchange.is_gone or exchange.is_started:
            return
        body = response.take() or b""
        kind = response.content_type or b"application/json"
        exchange.send(200, body, ((b"content-type", kind),))
        self.answer = body
        stats.bytes_sent = len(body)
        stats.is_complete = True

    def fail(self, error: CoolheadError) -> None:
        """Tells the client, in whatever way is still open."""
        self.outcome = error.code
        self.status = status_of(error)
        if self.exchange.is_gone or self.exchange.is_finished:
            return
        if self.stream is not None:
            self.stream.fail(error)
        elif self.exchange.is_started:
            self.exchange.abort()
        else:
            answer = error_answer(self.wire, error)
            self.exchange.send(answer.status, answer.body, answer.headers)

    def close(self) -> None:
        if self._hold is not None:
            self._hold.cancel()

    def line(self) -> RequestLine:
        """What is logged of it: no content."""
        features, stats, started_s = self.features, self.stats, self.started_s
        first_s = stats.first_content_at
        # In the order of its fields: names would double the time of it.
        return RequestLine(
            datetime.now(UTC),
            features.path,
            self.status or 200,
            self.decision.rule,
            self.target,
            self.model_id,
            features.is_stream,
            _ms(self.granted_s - started_s) if self.granted_s else 0.0,
            _ms(first_s - started_s) if first_s else 0.0,
            _ms(time.monotonic() - started_s),
            len(features.body),
            stats.bytes_sent,
            stats.prompt_tokens,
            stats.completion_tokens or stats.tokens,
            self.limit_hit.kind.value if self.limit_hit else stats.finish_reason,
            self.outcome,
            tuple(self.fallbacks),
            self.is_cached,
        )


def _ms(seconds: float) -> float:
    """Never negative, in hundredths."""
    return int(seconds * 100_000) / 100 if seconds > 0 else 0.0


def limit_note(wire: Wire, model: str, hit: LimitHit, response_id: str = "") -> bytes:
    """An event of the wire that says nothing but which limit has ended the answer."""
    event = keepalive_event(wire, model, is_first=False, response_id=response_id)
    start = event.rfind(b"{", 0, event.find(b"{") + 1)
    end = event.rfind(b"}")
    fields = msgspec.json.decode(event[start : end + 1])
    fields["coolhead"] = {"limit": hit.kind.value, "message": hit.sentence}
    return event[:start] + msgspec.json.encode(fields) + event[end + 1 :]


def too_long(prompt_tokens: int, context_tokens: int) -> ContextExceeded:
    """Nothing is ever cut: the client is told both numbers."""
    return ContextExceeded(
        f"This model's maximum context length is {context_tokens} tokens. However, your prompt is "
        f"{prompt_tokens} tokens long.",
        context_tokens=context_tokens,
        prompt_tokens=prompt_tokens,
    )
