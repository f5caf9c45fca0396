"""Ends answers that run away: too many tokens, too long, or the same words for ever. Pure.

The dispatcher shows it every event of a stream, on the core loop, with the time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.core.router.wire import Wire

ALLOW_REPETITION = "allow-repetition"
"""The tag of requests that want their loops: refrains, tables, test data."""


class LimitKind(StrEnum):
    TOKENS = "max_tokens"
    SECONDS = "max_seconds"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """0 or False: no limit."""

    max_tokens: int = 0
    max_seconds: float = 0.0
    stop_repetition: bool = True

    @property
    def is_any(self) -> bool:
        return bool(self.max_tokens or self.max_seconds or self.stop_repetition)


@dataclass(frozen=True, slots=True)
class LimitHit:
    kind: LimitKind
    sentence: str


class Repetition:
    """Notices text whose end is one piece repeated over and over.

    A run counts from 1,600 characters and 8 repeats on: tables, rulers and refrains that people want
    stay below; a loop of a model passes it in about 400 tokens. Costs a search in C every 256
    characters.
    """

    WINDOW = 16_384
    NEEDLE = 48
    EVERY = 256
    MIN_RUN = 1_600
    MIN_REPEATS = 8

    def __init__(self) -> None:
        self._text = b""
        self._fresh: list[bytes] = []
        self._fresh_size = 0

    def feed(self, text: bytes) -> bool:
        """Whether the text so far ends in a loop."""
        self._fresh.append(text)
        self._fresh_size += len(text)
        if self._fresh_size < self.EVERY:
            return False
        self._text = (self._text + b"".join(self._fresh))[-self.WINDOW :]
        self._fresh.clear()
        self._fresh_size = 0
        return self._is_loop()

    def _is_loop(self) -> bool:
        text = self._text
        size = len(text)
        if size < self.MIN_RUN:
            return False
        needle = text[-self.NEEDLE :]
        before = text.rfind(needle, 0, size - 1)
        if before < 0:
            return False
        period = size - self.NEEDLE - before
        run = max(self.MIN_RUN, self.MIN_REPEATS * period)
        if run > size:
            return False
        return text[size - run + period :] == text[size - run : size - period]


class LimitWatch:
    """The limits of one answer. `feed` with each event's data; time is monotonic seconds."""

    def __init__(self, limits: AnswerLimits, wire: Wire, started_s: float) -> None:
        self._limits = limits
        self._text_of = TEXTS.get(wire)
        self._started_s = started_s
        self._tokens = 0
        self._repetition = Repetition() if limits.stop_repetition else None

    def feed(self, data: bytes, now: float) -> LimitHit | None:
        """The limit that this event passes, if any."""
        limits = self._limits
        seconds = now - self._started_s
        if limits.max_seconds and seconds > limits.max_seconds:
            sentence = f"The answer was ended after {seconds:.0f} s; {limits.max_seconds:g} s is the limit."
            return LimitHit(LimitKind.SECONDS, sentence)
        text = delta_text(data, self._text_of)
        if not text:
            return None
        self._tokens += 1
        if limits.max_tokens and self._tokens >= limits.max_tokens:
            sentence = f"The answer was ended at {limits.max_tokens} tokens, which is the limit."
            return LimitHit(LimitKind.TOKENS, sentence)
        if self._repetition is not None and self._repetition.feed(text):
            sentence = "The answer was ended because it repeated the same words without end."
            return LimitHit(LimitKind.REPETITION, sentence)
        return None


def delta_text(data: bytes, text_of: "re.Pattern[bytes] | None") -> bytes:
    """The text that an event adds, still in JSON's escapes; empty where it adds none.

    Cut out rather than decoded: this runs for each token of each stream.
    """
    found = text_of.search(data) if text_of is not None else None
    return found.group(1) if found is not None else b""


def _pattern(names: bytes) -> "re.Pattern[bytes]":
    return re.compile(rb'(?:%b)"\s*:\s*"((?:[^"\\]|\\.)+)"' % names)


# `content` is found in "reasoning_content" as well; arguments of tool calls run away like text.
TEXTS: Mapping[Wire, "re.Pattern[bytes]"] = {
    Wire.CHAT: _pattern(b"content|arguments"),
    Wire.COMPLETIONS: _pattern(b"text|content"),
    Wire.RESPONSES: _pattern(b"delta"),
    Wire.MESSAGES: _pattern(b"text|partial_json|thinking"),
    Wire.OLLAMA_CHAT: _pattern(b"content|arguments"),
    Wire.OLLAMA_GENERATE: _pattern(b"content|response"),
}
