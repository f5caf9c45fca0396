"""Features: what is taken out of a request's body, on every wire."""

import json
from typing import Any

import pytest

from app.core.errors import RequestInvalid
from app.core.router.features import (
    IMAGE_TOKENS,
    RequestFeatures,
    estimate_tokens,
    extract,
    headers_of,
    split_path,
)

CHAT = "/v1/chat/completions"


def features(body: dict[str, Any], path: str = CHAT, **headers: str) -> RequestFeatures:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return extract(path, named, json.dumps(body).encode())


def test_extract_chat_with_parts_takes_texts_images_and_tools() -> None:
    seen = features(
        {
            "model": "qwen",
            "stream": True,
            "max_completion_tokens": 50,
            "messages": [
                {"role": "developer", "content": "be brief"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "what is this?"},
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                    ],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
                {"role": "tool", "tool_call_id": "1", "content": "a cat"},
            ],
            "tools": [{"type": "function", "function": {"name": "look"}}],
        }
    )
    assert seen.texts == ("be brief", "what is this?", "a cat")
    assert seen.last_user == "what is this?"
    assert seen.characters == len(seen.text)
    assert (seen.has_tools, seen.has_images, seen.is_stream) == (True, True, True)
    assert seen.max_tokens == 50
    assert seen.tokens > IMAGE_TOKENS


def test_extract_messages_wire_leaves_tool_results_out_of_what_the_user_wrote() -> None:
    seen = features(
        {
            "model": "claude",
            "system": [{"type": "text", "text": "you are", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "fix it"},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "1", "input": {"a": 1}}],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "content": [{"type": "text", "text": "done"}]}
                    ],
                },
                {"role": "system", "content": "a reminder in the middle"},
            ],
            "thinking": {"type": "adaptive"},
            "metadata": {"user_id": "u1"},
        },
        "/v1/messages?beta=true",
    )
    assert seen.texts == ("you are", "fix it", "done", "a reminder in the middle")
    assert seen.last_user == "fix it"
    assert seen.session == "u1"


def test_extract_responses_wire_reads_instructions_and_items() -> None:
    seen = features(
        {
            "instructions": "be brief",
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "hello"}],
                },
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
                {"type": "function_call_output", "call_id": "1", "output": "42"},
            ],
            "tools": [{"type": "namespace", "tools": []}, {"type": "web_search"}],
            "text": {"format": {"type": "json_schema", "schema": {}}},
            "prompt_cache_key": "abc",
        },
        "/v1/responses",
    )
    assert seen.texts == ("be brief", "hello", "42")
    assert seen.last_user == "hello"
    assert (seen.has_tools, seen.wants_json, seen.session) == (True, True, "abc")


@pytest.mark.parametrize(
    ("path", "body", "texts"),
    [
        ("/v1/completions", {"prompt": "def f(", "suffix": ")"}, ("def f(", ")")),
        ("/v1/completions", {"prompt": ["a", "b"]}, ("a", "b")),
        ("/v1/completions", {"prompt": [[1, 2, 3]]}, ()),
        ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64"}, ("a", "b")),
        ("/v1/embeddings", {"input": [1, 2, 3]}, ()),
        ("/v1/responses", {"input": "hi"}, ("hi",)),
        ("/api/generate", {"prompt": "hi", "images": ["AAAA"]}, ("hi",)),
    ],
)
def test_extract_other_wires_take_their_texts(
    path: str, body: dict[str, Any], texts: tuple[str, ...]
) -> None:
    seen = features({"model": "m", **body}, path)
    assert seen.texts == texts
    assert seen.has_images == ("images" in body)


def test_extract_ollama_streams_unless_told_not_to() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi", "images": ["AAAA"]}]}
    seen = features(body | {"options": {"num_predict": 7}, "format": "json"}, "/api/chat")
    assert (seen.is_stream, seen.has_images, seen.wants_json, seen.max_tokens) == (
        True,
        True,
        True,
        7,
    )
    assert not features(body | {"stream": False}, "/api/chat").is_stream
    assert not features(body).is_stream


def test_extract_model_in_the_path_goes_before_the_body() -> None:
    seen = features({"model": "other"}, "/model/qwen%2F7b/v1/chat/completions?x=1")
    assert (seen.path, seen.model, seen.path_model) == (CHAT, "qwen/7b", "qwen/7b")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", ("/", "")),
        ("/v1/models/", ("/v1/models", "")),
        ("/model/x", ("/", "x")),
        ("/model/", ("/", "")),
        ("/models/x/y", ("/models/x/y", "")),
    ],
)
def test_split_path_odd_ones_stay_whole(path: str, expected: tuple[str, str]) -> None:
    assert split_path(path) == expected


def test_extract_tags_from_body_and_header_are_joined() -> None:
    seen = features({"tags": ["night", " big ", ""]}, x_coolhead_tags="web, night")
    assert seen.tags == ("night", "big", "web")
    assert seen.has_own_fields
    assert features({"tags": "a, b"}).tags == ("a", "b")
    assert not features({}, x_coolhead_tags="web").has_own_fields


def test_extract_session_of_a_header_goes_before_the_body() -> None:
    assert features({"user": "u"}, x_claude_code_session_id="s").session == "s"
    assert features({"user": "u", "prompt_cache_key": "p"}).session == "p"
    assert features({"user": {"not": "text"}}).session == ""


def test_extract_unlimited_answer_counts_as_none() -> None:
    assert features({"max_tokens": -1}).max_tokens is None
    assert features({"max_tokens": 5.0}).max_tokens == 5


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"5",
        b'{"model": 5}',
        b'{"messages": {}}',
        b'{"messages": [{"content": 5}]}',
        b'{"stream": "yes"}',
        b'{"tags": [5]}',
        b'{"tags": {}}',
        b"\xff\xfe",
        b'{"model": "\xff"}',
        b'{"max_tokens": 1e999}',
        b'{"model": "x", "options": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"messages": [{"content": ' + b'[{"content": ' * 50_000 + b"1" + b"}]" * 50_000 + b"}]}",
    ],
)
def test_extract_malformed_body_is_the_clients_mistake(body: bytes) -> None:
    with pytest.raises(RequestInvalid):
        extract(CHAT, {}, body)


def test_extract_without_a_body_is_no_mistake() -> None:
    seen = extract("/v1/models", {}, b"")
    assert (seen.path, seen.texts, seen.tokens) == ("/v1/models", (), 0)


def test_extract_keeps_the_raw_bytes() -> None:
    raw = b'{ "model" : "m" ,  "unknown": [1.50] }'
    assert extract(CHAT, {}, raw).body is raw


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("", 0, 0),
        ("word " * 100, 100, 150),
        ("слово " * 100, 150, 400),
        ("你好世界" * 100, 300, 420),
        ("😀" * 100, 100, 160),
    ],
)
def test_estimate_tokens_any_script_is_of_the_right_size(text: str, low: int, high: int) -> None:
    assert low <= estimate_tokens(text) <= high


def test_headers_of_lowers_names() -> None:
    assert headers_of([(b"X-Team", b"a"), (b"x-team", b"b")]) == {"x-team": "b"}


@pytest.mark.parametrize(
    "asked",
    [
        {"top_logprobs": 21},
        {"logprobs": 1_000_000},
        {"n_probs": 49_152},
        {"repeat_last_n": 2_000_000_000},
        {"dry_penalty_last_n": 2_000_000_000},
    ],
)
def test_extract_fields_that_would_cost_the_worker_its_memory_are_refused(
    asked: dict[str, Any],
) -> None:
    with pytest.raises(RequestInvalid):
        features({"model": "m", "messages": []} | asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": True, "top_logprobs": 20},
        {"logprobs": 5},
        {"repeat_last_n": -1},
        {"response_format": {"type": ["json_object"]}},
        {"text": {"format": {"type": {}}}},
    ],
)
def test_extract_odd_but_harmless_fields_pass(asked: dict[str, Any]) -> None:
    assert not features({"model": "m", "messages": []} | asked).wants_json


def test_extract_name_too_long_for_a_header_is_refused() -> None:
    assert features({"model": "m" * 512, "messages": []}).model == "m" * 512
    with pytest.raises(RequestInvalid, match="512 characters"):
        features({"model": "m" * 513, "messages": []})
    with pytest.raises(RequestInvalid, match="512 characters"):
        features({"messages": []}, path=f"/model/{'m' * 513}{CHAT}")
