"""Answers kept for equal requests, where a rule asks for it. Pure.

Keyed on the whole request, normalised; bounded in bytes and in time. Used by the dispatcher, core loop.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

import msgspec

# Ours, or without influence on the answer.
_NOT_ASKED = frozenset({"tags", "session", "user", "metadata", "prompt_cache_key"})


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """`body` as it was sent: one JSON body, or a whole event stream."""

    body: bytes
    content_type: bytes
    is_stream: bool
    expires_s: float


class ResponseCache:
    """Least recently used goes first once `budget_bytes` are full. Thread: core loop only."""

    def __init__(self, budget_bytes: int = 16 * 1024 * 1024) -> None:
        self.budget_bytes = budget_bytes
        self.size_bytes = 0
        self.hits = 0
        self.misses = 0
        self._kept: OrderedDict[bytes, KeptAnswer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: bytes, now: float) -> KeptAnswer | None:
        kept = self._kept.get(key)
        if kept is not None and kept.expires_s <= now:
            self._drop(key)
            kept = None
        if kept is None:
            self.misses += 1
            return None
        self._kept.move_to_end(key)
        self.hits += 1
        return kept

    def put(self, key: bytes, answer: KeptAnswer) -> None:
        """Keeps `answer` unless it is larger than a quarter of the budget."""
        if len(answer.body) * 4 > self.budget_bytes:
            return
        self._drop(key)
        self._kept[key] = answer
        self.size_bytes += len(answer.body)
        while self.size_bytes > self.budget_bytes:
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        self._kept.clear()
        self.size_bytes = 0

    def _drop(self, key: bytes) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size_bytes -= len(kept.body)


def cache_key(target: str, path: str, body: bytes) -> bytes:
    """The same for two bodies that differ only in order, spacing, or fields that change nothing."""
    fields = msgspec.json.decode(body)
    asked = {name: value for name, value in fields.items() if name not in _NOT_ASKED}
    text = msgspec.json.encode(asked, order="deterministic")
    return hashlib.blake2b(
        b"\0".join((target.encode(), path.encode(), text)), digest_size=20
    ).digest()
