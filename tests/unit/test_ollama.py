"""The Ollama face: requests and answers translated both ways, whatever pieces they come in."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import RequestInvalid
from app.core.router.ollama import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    Lines,
    plain_name,
    tagged,
    target_path,
    translated_request,
)
from app.core.router.ollama_pages import OllamaModel, running, show, tags, version
from app.core.router.wire import Wire

STREAM = (
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":null}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"c","type":"function",'
    b'"function":{"name":"f","arguments":"{\\"a\\""}}]}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":'
    b'{"arguments":":1}"}}]}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}\n\n'
    b'data: {"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":32},'
    b'"timings":{"prompt_ms":2.0,"predicted_ms":5.0}}\n\ndata: [DONE]\n\n'
)


def sent(wire: Wire, **asked: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(translated_request(wire, json.dumps(asked).encode()))
    return found


def lines_of(wire: Wire, *pieces: bytes) -> list[dict[str, Any]]:
    lines = Lines(wire, "m:latest", now=lambda: 0.5, clock=lambda: 7.0)
    told = b"".join(lines(piece) for piece in pieces if piece) + lines(b"")
    return [json.loads(line) for line in told.splitlines()]


def test_chat_is_asked_as_a_chat_that_streams_by_default() -> None:
    body = sent(
        Wire.OLLAMA_CHAT,
        model="m:latest",
        messages=[{"role": "user", "content": "x"}],
        options={"num_ctx": 32768, "temperature": 0, "num_predict": 9},
    )
    assert body["model"] == "m"
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert body["temperature"] == 0
    assert body["max_tokens"] == 9
    assert "num_ctx" not in body
    assert body["messages"] == [{"role": "user", "content": "x"}]


def test_chat_with_images_calls_and_results_is_translated() -> None:
    body = sent(
        Wire.OLLAMA_CHAT,
        model="m",
        stream=False,
        tools=[{"type": "function"}],
        messages=[
            {"role": "user", "content": "see", "images": ["AAAA"]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
            },
            {"role": "tool", "content": "7", "tool_name": "f"},
        ],
    )
    user, assistant, tool = body["messages"]
    assert user["content"][1]["image_url"]["url"] == "data:image/png;base64,AAAA"
    assert assistant["tool_calls"][0]["function"]["arguments"] == '{"a":1}'
    assert tool["tool_call_id"] == assistant["tool_calls"][0]["id"]
    assert body["stream"] is False
    assert "stream_options" not in body


def test_generate_is_a_chat_and_a_completion_when_raw_or_with_a_suffix() -> None:
    body = sent(Wire.OLLAMA_GENERATE, model="m", prompt="p", system="s")
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert target_path(Wire.OLLAMA_GENERATE, json.dumps(body).encode()) == CHAT_PATH
    for extra in ({"raw": True}, {"suffix": "end"}):
        made = translated_request(
            Wire.OLLAMA_GENERATE, json.dumps({"model": "m", "prompt": "p", **extra}).encode()
        )
        assert json.loads(made)["prompt"] == "p"
        assert target_path(Wire.OLLAMA_GENERATE, made) == COMPLETIONS_PATH


def test_format_becomes_a_response_format() -> None:
    assert sent(Wire.OLLAMA_CHAT, model="m", format="json")["response_format"] == {
        "type": "json_object"
    }
    schema = {"type": "object"}
    made = sent(Wire.OLLAMA_CHAT, model="m", format=schema)["response_format"]
    assert made["json_schema"]["schema"] == schema


@pytest.mark.parametrize(
    "body",
    [
        b"nope",
        b"[]",
        b"{}",
        b'{"model":3}',
        b'{"model":"m","messages":3}',
        b'{"model":"m","messages":[3]}',
        b'{"model":"m","options":[]  ,"messages":{}}',
        b'{"model":"m","options":[1]}',
        b'{"model":"m","messages":[{"tool_calls":[3]}]}',
        b'{"model":"m","messages":[{"tool_calls":[{"function":3}]}]}',
        b'{"model":"m","messages":[{"images":3}]}',
    ],
)
def test_request_that_makes_no_sense_is_refused(body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        translated_request(Wire.OLLAMA_CHAT, body)


def test_stream_becomes_lines_with_calls_and_counts_at_the_end() -> None:
    lines = lines_of(Wire.OLLAMA_CHAT, STREAM)
    assert [line["done"] for line in lines] == [False, False, True]
    assert lines[0]["message"]["thinking"] == "hm"
    assert lines[1]["message"]["content"] == "Hi"
    last = lines[2]
    assert last["message"]["tool_calls"] == [{"function": {"name": "f", "arguments": {"a": 1}}}]
    assert last["done_reason"] == "stop"
    assert last["prompt_eval_count"] == 32
    assert last["eval_count"] == 3
    assert last["eval_duration"] == 5_000_000
    assert last["model"] == "m:latest"
    assert last["created_at"] == "1970-01-01T00:00:00.500000Z"


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_stream_cut_anywhere_becomes_the_same_lines(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(places)]
    assert lines_of(Wire.OLLAMA_CHAT, *pieces) == lines_of(Wire.OLLAMA_CHAT, STREAM)


def test_generate_stream_says_response() -> None:
    stream = b'data: {"choices":[{"text":"a","finish_reason":"length"}]}\n\n'
    lines = lines_of(Wire.OLLAMA_GENERATE, stream)
    assert lines[0]["response"] == "a"
    assert lines[1]["done_reason"] == "length"


def test_error_of_the_engine_is_an_error_line() -> None:
    lines = lines_of(Wire.OLLAMA_CHAT, b'data: {"error":{"message":"boom"}}\n\n')
    assert lines[0] == {"error": "boom"}


def test_whole_answer_becomes_one_object() -> None:
    body = (
        b'{"choices":[{"finish_reason":"length","message":{"role":"assistant","content":"Hi"}}],'
        b'"usage":{"completion_tokens":3,"prompt_tokens":32}}'
    )
    told = json.loads(Lines(Wire.OLLAMA_CHAT, "m").whole(body))
    assert told["message"]["content"] == "Hi"
    assert told["done"] is True
    assert told["done_reason"] == "length"
    assert told["eval_count"] == 3


def test_names_are_told_with_a_tag_and_taken_without() -> None:
    assert tagged("smol") == "smol:latest"
    assert tagged("qwen:7b") == "qwen:7b"
    assert plain_name("smol:latest") == "smol"
    assert plain_name("qwen:7b") == "qwen:7b"


def test_pages_have_what_editors_read() -> None:
    model = OllamaModel("smol", 98_000_000, 4096, "llama", 135_000_000, "Q4_1")
    entry = tags([model])["models"][0]
    assert entry["name"] == entry["model"] == "smol:latest"
    assert len(entry["digest"]) == 64
    told = show(model)
    assert told["model_info"]["llama.context_length"] == 4096
    assert told["model_info"]["general.architecture"] == "llama"
    assert "tools" in told["capabilities"]
    assert "num_ctx" in told["parameters"]
    assert told["details"]["parameter_size"] == "135M"
    assert running([model])["models"][0]["context_length"] == 4096
    assert tuple(int(part) for part in version()["version"].split(".")) >= (0, 13, 4)
