"""Requests that nobody can answer, or not this engine."""

import json

import pytest

from app.core.backends.base import Capabilities
from app.core.errors import RequestInvalid, RequestUnsupported
from app.core.router.features import extract
from app.core.router.sense import check_able, check_asked
from app.core.router.wire_kinds import Wire

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
PICTURE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


def asked(path: str, body: object) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    check_asked(extract(path, {}, raw))


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        (CHAT, {"messages": []}, "messages"),
        (CHAT, b'{"messages": [  ]}', "messages"),
        (CHAT, {"messages": None}, "messages"),
        (CHAT, {"model": "x"}, "messages"),
        (CHAT, {"prompt": [1, 2]}, "messages"),
        ("/v1/messages", {"system": "x", "messages": []}, "messages"),
        ("/v1/messages/count_tokens", {"messages": []}, "messages"),
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/responses", {"instructions": "x"}, "input"),
        (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HI, "max_completion_tokens": 0}, "max_tokens"),
        ("/v1/responses", {"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
        (CHAT, b"", None),
        ("/v1/embeddings", b"", None),
    ],
)
def test_sense_nothing_to_answer_is_the_clients_fault(
    path: str, body: object, key: str | None
) -> None:
    with pytest.raises(RequestInvalid) as caught:
        asked(path, body)
    assert caught.value.details.get("param") == key


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": HI}),
        (CHAT, {"messages": HI, "max_tokens": 1}),
        (CHAT, {"messages": HI, "max_tokens": -1}),
        (CHAT, {"messages": [{"role": "assistant", "content": "So"}]}),
        (CHAT, {"messages": [{"role": "tool", "content": "4"}]}),
        (CHAT, {"messages": [{}]}),
        (CHAT, {"messages": [{"role": "user", "content": PICTURE}]}),
        ("/v1/completions", {"prompt": ""}),
        ("/v1/completions", {"prompt": [1, 2]}),
        ("/v1/responses", {"input": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"content": ""}),
    ],
)
def test_sense_what_an_engine_may_answer_goes_on(path: str, body: object) -> None:
    asked(path, body)


@pytest.mark.parametrize(
    ("path", "body", "able", "said"),
    [
        (CHAT, {"messages": [{"role": "user", "content": PICTURE}]}, Capabilities(), "images"),
        ("/v1/embeddings", {"input": "x"}, Capabilities(), "embeddings"),
        ("/v1/messages", {"messages": HI}, Capabilities(), "/v1/messages"),
        ("/v1/responses", {"input": "x"}, Capabilities(), "/v1/responses"),
    ],
)
def test_sense_what_an_engine_cannot_do_is_said_once(
    path: str, body: object, able: Capabilities, said: str
) -> None:
    features = extract(path, {}, json.dumps(body).encode())
    with pytest.raises(RequestUnsupported, match=said):
        check_able("m", able, features.wire, path, features)
    wires = frozenset({"/v1/responses", "/v1/messages"})
    willing = Capabilities(images=True, embeddings=True, wires=wires)
    check_able("m", willing, features.wire, path, features)
    check_able("m", able, Wire.CHAT, CHAT, extract(CHAT, {}, b'{"messages":[{}]}'))
