import json

import pytest

from app.core.errors import RequestInvalid
from app.core.router.bodies import for_remote, with_limits, with_system_prompt
from app.core.router.canned import canned_answer
from app.core.router.wire import Wire


def test_bodies_untouched_request_keeps_its_bytes() -> None:
    raw = b'{ "model" : "m", "x": 1.50 }'
    assert for_remote(raw, "", has_own_fields=False) is raw
    assert with_limits(Wire.CHAT, raw, 0, 0.0) is raw


def test_bodies_own_fields_leave_and_the_model_is_mapped() -> None:
    raw = b'{"model":"m","tags":["a"],"session":"s","x":1.50}'
    assert for_remote(raw, "big", has_own_fields=True) == b'{"model":"big","x":1.50}'


def test_bodies_limits_only_lower_what_was_asked_for() -> None:
    less = json.loads(with_limits(Wire.CHAT, b'{"max_tokens":5}', 10, 0.0))
    assert less == {"max_tokens": 5}
    more = json.loads(with_limits(Wire.CHAT, b'{"max_completion_tokens":50}', 10, 2.5))
    assert more == {"max_completion_tokens": 10, "t_max_predict_ms": 2500}
    none = json.loads(with_limits(Wire.RESPONSES, b"{}", 10, 0.0))
    assert none == {"max_output_tokens": 10}


def test_bodies_system_prompt_joins_the_one_that_is_there() -> None:
    chat = b'{"messages":[{"role":"user","content":"hi"}]}'
    made = json.loads(with_system_prompt(Wire.CHAT, chat, "Be calm."))
    assert made["messages"][0] == {"role": "system", "content": "Be calm."}
    again = json.loads(with_system_prompt(Wire.CHAT, json.dumps(made).encode(), "First."))
    assert again["messages"][0]["content"] == "First.\n\nBe calm."
    parts = b'{"system":[{"type":"text","text":"old"}]}'
    claude = json.loads(with_system_prompt(Wire.MESSAGES, parts, "new"))
    assert [part["text"] for part in claude["system"]] == ["new", "old"]
    responses = json.loads(with_system_prompt(Wire.RESPONSES, b"{}", "new"))
    assert responses["instructions"] == "new"


def test_bodies_that_are_no_object_are_refused() -> None:
    with pytest.raises(RequestInvalid):
        for_remote(b"[]", "m", has_own_fields=True)


@pytest.mark.parametrize(
    ("wire", "path"),
    [
        (Wire.CHAT, ("choices", 0, "message", "content")),
        (Wire.COMPLETIONS, ("choices", 0, "text")),
        (Wire.MESSAGES, ("content", 0, "text")),
        (Wire.RESPONSES, ("output", 0, "content", 0, "text")),
    ],
)
def test_bodies_canned_answer_has_the_shape_of_its_wire(
    wire: Wire, path: tuple[str | int, ...]
) -> None:
    body, kind = canned_answer(wire, "m", "Not now.", False)
    found = json.loads(body)
    for step in path:
        found = found[step]
    assert (found, kind) == ("Not now.", b"application/json")
    stream, kind = canned_answer(wire, "m", "Not now.", True)
    assert kind == b"text/event-stream"
    assert b"Not now." in stream
