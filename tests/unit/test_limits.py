import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.router.job import limit_note
from app.core.router.limits import (
    TEXTS,
    AnswerLimits,
    LimitHit,
    LimitKind,
    LimitWatch,
    Repetition,
    delta_text,
)
from app.core.router.wire import Wire


def chunk(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": {"content": text}}]}).encode().replace(
        b'": ', b'":'
    )


def fed(text: str, size: int = 5) -> int | None:
    """Characters until the loop was noticed."""
    watch = Repetition()
    data = text.encode()
    for start in range(0, len(data), size):
        if watch.feed(data[start : start + size]):
            return start + size
    return None


@pytest.mark.parametrize("unit", ["a", "no ", "I am sorry. ", "line one\\nline two\\n" * 8])
def test_limits_repetition_is_noticed_and_not_late(unit: str) -> None:
    start = "Here is what you asked for: "
    found = fed(start + unit * (20_000 // len(unit)))
    assert found is not None
    assert found <= len(start) + max(1600, 8 * len(unit)) + 512


def test_limits_repetition_leaves_prose_tables_and_code_alone() -> None:
    words = [f"word{n}" for n in range(400)]
    chance = random.Random(1)
    prose = " ".join(chance.choice(words) for _ in range(6000))
    table = "".join(f"| row {n} | {n * n} | ok |\\n" for n in range(1000))
    ruler = "=" * 1200 + "\\n" + prose[:500]
    assert fed(prose) is None
    assert fed(table) is None
    assert fed(ruler) is None


@given(st.text(max_size=30), st.text(min_size=1, max_size=30), st.booleans())
def test_limits_delta_text_is_what_json_says(before: str, text: str, spaced: bool) -> None:
    separators = (", ", ": ") if spaced else (",", ":")
    data = json.dumps({"x": before, "content": text}, separators=separators).encode()
    found = delta_text(data, TEXTS[Wire.CHAT])
    assert json.loads(b'"' + found + b'"') == text


def test_limits_tokens_and_seconds_end_an_answer() -> None:
    watch = LimitWatch(AnswerLimits(3, 0.0, False), Wire.CHAT, 0.0)
    assert [watch.feed(chunk("a"), 0.0) is not None for _ in range(3)] == [False, False, True]
    watch = LimitWatch(AnswerLimits(0, 10.0, False), Wire.CHAT, 0.0)
    assert watch.feed(chunk("a"), 9.0) is None
    hit = watch.feed(chunk("a"), 11.0)
    assert hit is not None
    assert hit.kind is LimitKind.SECONDS


def test_limits_repetition_in_a_stream_of_chunks_is_noticed() -> None:
    watch = LimitWatch(AnswerLimits(), Wire.CHAT, 0.0)
    hits = [watch.feed(chunk("again "), 0.0) for _ in range(1000)]
    assert any(hit is not None and hit.kind is LimitKind.REPETITION for hit in hits)


@pytest.mark.parametrize(
    "wire", [Wire.CHAT, Wire.COMPLETIONS, Wire.RESPONSES, Wire.MESSAGES, Wire.OLLAMA_CHAT]
)
def test_limits_note_says_which_limit_in_the_wires_own_shape(wire: Wire) -> None:
    event = limit_note(wire, "m", LimitHit(LimitKind.REPETITION, "It repeated."))
    start = event.index(b"{")
    told = json.loads(event[start:].strip())
    assert told["coolhead"] == {"limit": "repetition", "message": "It repeated."}
