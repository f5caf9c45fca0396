"""Looks at a stream of events as it passes: content, tokens, finish reason, usage, the end. Pure.

Used by `splice.py` on each piece from a worker; nothing is changed or re-encoded. It is on the path of
every token, so that a usual frame costs two byte searches and one regular expression.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from app.core.router.wire_kinds import Wire

_TAIL_LIMIT_BYTES = 4 * 1024 * 1024
"""A single event larger than this is no longer looked at."""

# A quote inside a JSON string is escaped, so that these never match what a model wrote.
_CONTENT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning|refusal|arguments)"\s*:\s*"[^"]'
    rb'|"tool_calls"\s*:\s*\[\s*\{'
)
_FINISH = re.compile(rb'"(?:finish_reason|stop_reason)"\s*:\s*"(\w+)"')
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_EVENT_TYPE = re.compile(rb'(?:\A|\n)event: *([\w.]+)|"type"\s*:\s*"([\w.]+)"')


class StreamStats(msgspec.Struct):
    """What was seen passing by. Times are monotonic seconds; None where it did not happen.

    Attributes:
        tokens: content frames counted while streaming; `completion_tokens` is the engine's own count.
        finish_reason: as the wire calls it; empty until seen.
        is_complete: the wire's own last event (or the whole JSON body) went through.
        has_error: the engine itself told the client of an error.
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
    has_error: bool = False

    @property
    def tokens_per_s(self) -> float:
        """Decode speed between the first and the last content; 0 where it cannot be told."""
        if self.first_content_at is None or self.last_content_at is None:
            return 0.0
        passed_s = self.last_content_at - self.first_content_at
        return (self.tokens - 1) / passed_s if passed_s > 0 and self.tokens > 1 else 0.0


class FramePeek:
    """Splits a stream into events, for looking only.

    Args:
        wire: which events to expect.
        stats: written to.
        on_frame: sees each event; a reason that it returns ends the answer after that event.
    """

    def __init__(
        self,
        wire: Wire,
        stats: StreamStats,
        on_frame: Callable[[bytes], str | None] | None = None,
    ) -> None:
        self.stats = stats
        self.last_frame = b""
        self._on_frame = on_frame
        self._tail = b""
        self._is_lost = False
        self._end = b"\n\n"
        self._look = {
            Wire.RESPONSES: self._look_responses,
            Wire.MESSAGES: self._look_messages,
        }.get(wire, self._look_chat)
        self.ended_by = ""
        self.response_id = ""

    @property
    def is_between_frames(self) -> bool:
        """Whether an event of our own may be put in here."""
        return not self._tail and not self._is_lost

    def feed(self, piece: bytes, now: float) -> int:
        """Looks at a piece.

        Returns:
            How many of its bytes belong to the answer: all, unless `on_frame` ended it.
        """
        if self._is_lost:
            return len(piece)
        before = len(self._tail)
        data = self._tail + piece if before else piece
        if self._end not in data:
            if b"\r\n\r\n" in data:
                self._end = b"\r\n\r\n"
            else:
                self._keep(data)
                return len(piece)
        frames = data.split(self._end)
        self._keep(frames.pop())
        position = 0
        for frame in frames:
            position += len(frame) + len(self._end)
            if not frame:
                continue
            self._look(frame, now)
            self.last_frame = frame
            if self._on_frame is not None:
                reason = self._on_frame(frame)
                if reason:
                    self.ended_by = reason
                    self._tail = b""
                    return max(0, position - before)
        return len(piece)

    def _keep(self, tail: bytes) -> None:
        if len(tail) > _TAIL_LIMIT_BYTES:
            self._is_lost = True
            tail = b""
        self._tail = tail

    def _content(self, now: float) -> None:
        stats = self.stats
        stats.tokens += 1
        if stats.first_content_at is None:
            stats.first_content_at = now
        stats.last_content_at = now

    def _look_chat(self, frame: bytes, now: float) -> None:
        stats = self.stats
        if _CONTENT.search(frame) is not None:
            self._content(now)
            if b'"finish_reason":null' in frame:
                return
        elif b"[DONE]" in frame[:16]:
            stats.is_complete = True
            return
        elif frame.startswith((b'data: {"error"', b"error:", b"event: error")):
            stats.has_error = True
            return
        found = _FINISH.search(frame)
        if found is not None:
            stats.finish_reason = found[1].decode("ascii")
        if _USAGE.search(frame) is not None:
            _take_usage(stats, data_of(frame).get("usage"))

    def _look_responses(self, frame: bytes, now: float) -> None:
        kind = _type_of(frame)
        if kind.endswith(b".delta"):
            self._content(now)
        elif kind in {b"response.completed", b"response.incomplete", b"response.failed"}:
            stats = self.stats
            stats.is_complete = True
            stats.has_error = kind == b"response.failed"
            stats.finish_reason = kind[9:].decode("ascii")
            response = data_of(frame).get("response")
            if isinstance(response, dict):
                _take_usage(stats, response.get("usage"))
        elif kind == b"response.created":
            response = data_of(frame).get("response")
            if isinstance(response, dict):
                self.response_id = str(response.get("id", ""))
        elif kind == b"error":
            self.stats.has_error = True

    def _look_messages(self, frame: bytes, now: float) -> None:
        kind = _type_of(frame)
        if kind == b"content_block_delta":
            self._content(now)
        elif kind == b"message_start":
            message = data_of(frame).get("message")
            if isinstance(message, dict):
                _take_usage(self.stats, message.get("usage"))
        elif kind == b"message_delta":
            found = _FINISH.search(frame)
            if found is not None:
                self.stats.finish_reason = found[1].decode("ascii")
            _take_usage(self.stats, data_of(frame).get("usage"))
        elif kind == b"message_stop":
            self.stats.is_complete = True
        elif kind == b"error":
            self.stats.has_error = True


def _type_of(frame: bytes) -> bytes:
    found = _EVENT_TYPE.search(frame)
    return (found[1] or found[2]) if found else b""


def data_of(frame: bytes) -> dict[str, Any]:
    """The JSON object of an event; empty where it has none."""
    start = frame.find(b"data:")
    if start < 0:
        return {}
    try:
        found = msgspec.json.decode(frame[start + 5 :].strip())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def text_of(frame: bytes) -> str:
    """The text that an event adds to the answer, on any wire; empty for none."""
    data = data_of(frame)
    delta = data.get("delta")
    if isinstance(delta, str):
        return delta
    if isinstance(delta, dict):
        return str(delta.get("text") or delta.get("thinking") or delta.get("partial_json") or "")
    choices = data.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        choice = choices[0]
        inner = choice.get("delta")
        if isinstance(inner, dict):
            return str(inner.get("content") or inner.get("reasoning_content") or "")
        return str(choice.get("text") or "")
    return ""


def usage_of_body(body: bytes, stats: StreamStats) -> None:
    """Fills `stats` from a whole JSON answer of any wire."""
    try:
        found = _decode_answer(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    usage = found.usage
    if usage is not None:
        _take_counts(
            stats,
            usage.input_tokens if usage.prompt_tokens is None else usage.prompt_tokens,
            usage.output_tokens if usage.completion_tokens is None else usage.completion_tokens,
            usage.input_tokens_details or usage.prompt_tokens_details,
            usage.cache_read_input_tokens,
        )
    if isinstance(found.stop_reason, str):
        stats.finish_reason = found.stop_reason
    elif found.choices:
        stats.finish_reason = str(found.choices[0].finish_reason or "")
    elif isinstance(found.status, str):
        stats.finish_reason = found.status
    stats.tokens = stats.completion_tokens


class _Choice(msgspec.Struct):
    finish_reason: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    input_tokens: Any = None
    completion_tokens: Any = None
    output_tokens: Any = None
    prompt_tokens_details: Any = None
    input_tokens_details: Any = None
    cache_read_input_tokens: Any = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    choices: list[_Choice] = []
    stop_reason: Any = None
    status: Any = None


_decode_answer = msgspec.json.Decoder(_Answer).decode


def _take_usage(stats: StreamStats, usage: object) -> None:
    """Takes the counts of any wire's usage object; what is missing leaves what is known."""
    if not isinstance(usage, dict):
        return

    get = usage.get
    _take_counts(
        stats,
        get("prompt_tokens", get("input_tokens")),
        get("completion_tokens", get("output_tokens")),
        get("prompt_tokens_details", get("input_tokens_details")),
        get("cache_read_input_tokens"),
    )


def _take_counts(
    stats: StreamStats, prompt: object, completion: object, details: object, cache_read: object
) -> None:
    if type(prompt) is int:
        # One wire counts what it found in the cache beside the rest, the others within.
        stats.prompt_tokens = prompt + (cache_read if type(cache_read) is int else 0)
    if type(completion) is int:
        stats.completion_tokens = completion
    cached = details.get("cached_tokens") if type(details) is dict else cache_read
    if type(cached) is int:
        stats.cached_tokens = cached
