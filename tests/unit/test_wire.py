"""Errors, keep-alives and endings as each wire says them."""

import json
from typing import Any

import pytest

from app.core.errors import (
    AdmissionClosed,
    ContextExceeded,
    CoolheadError,
    DoesNotFit,
    ModelUnknown,
    QueueFull,
    RequestForbidden,
    RequestInvalid,
    TargetFailed,
    WorkerStopped,
)
from app.core.router.sse import FramePeek, StreamStats
from app.core.router.wire import (
    Wire,
    ending_events,
    error_answer,
    error_event,
    error_from_worker,
    keepalive_event,
    status_of,
    wire_of,
)
from app.core.router.wire_responses import KeptId

STREAMED = [Wire.CHAT, Wire.COMPLETIONS, Wire.RESPONSES, Wire.MESSAGES]


@pytest.mark.parametrize(
    ("path", "wire"),
    [
        ("/v1/chat/completions", Wire.CHAT),
        ("/model/smol/v1/chat/completions", Wire.CHAT),
        ("/api/v0/chat/completions", Wire.CHAT),
        ("/v1/completions", Wire.COMPLETIONS),
        ("/v1/responses", Wire.RESPONSES),
        ("/v1/messages", Wire.MESSAGES),
        ("/v1/messages/count_tokens", Wire.MESSAGES),
        ("/api/chat", Wire.OLLAMA_CHAT),
        ("/api/generate", Wire.OLLAMA_GENERATE),
        ("/api/tags", Wire.OLLAMA),
        ("/v1/models", Wire.OTHER),
        ("/model/", Wire.OTHER),
        ("/model/x", Wire.OTHER),
        ("", Wire.OTHER),
    ],
)
def test_wire_of_path(path: str, wire: Wire) -> None:
    assert wire_of(path) is wire


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestInvalid("x"), 400),
        (RequestInvalid("x", status=413), 413),
        (RequestInvalid("x", status=200), 400),
        (RequestForbidden("x"), 403),
        (RequestForbidden("x", status=401), 401),
        (ModelUnknown("x"), 404),
        (ContextExceeded("x"), 400),
        (QueueFull("x"), 429),
        (AdmissionClosed("x"), 503),
        (DoesNotFit("x"), 503),
        (DoesNotFit("x", is_permanent=False), 503),
        (DoesNotFit("x", is_permanent=True), 400),
        (WorkerStopped("x"), 503),
        (TargetFailed("x"), 502),
        (CoolheadError("x"), 500),
    ],
)
def test_status_of_error(error: CoolheadError, status: int) -> None:
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("asked", "given"),
    [(7, 7), (0, 1), (0.2, 1), (90, 60), (12.3, 13), (None, 15), ("x", 15), (float("nan"), 15)],
)
def test_retry_after_is_always_there_and_between_1_and_60(asked: object, given: int) -> None:
    for error in (QueueFull("x", retry_after_s=asked), WorkerStopped("x", retry_after_s=asked)):
        assert dict(error_answer(Wire.CHAT, error).headers)[b"retry-after"] == b"%d" % given


def test_openai_envelope_has_all_fields_and_says_whose_error_it_is() -> None:
    body = json.loads(error_answer(Wire.CHAT, ModelUnknown("No model x.", model="x")).body)
    assert body["error"]["message"] == "No model x."
    assert body["error"]["type"] == "not_found_error"
    assert body["error"]["code"] == "model_not_found"
    assert body["error"]["param"] is None
    assert body["error"]["source"] == "coolhead"
    assert body["error"]["details"] == {"model": "x"}


def test_anthropic_and_ollama_envelopes() -> None:
    body = json.loads(error_answer(Wire.MESSAGES, AdmissionClosed("Paused.")).body)
    assert body["type"] == "error"
    assert body["error"]["type"] == "overloaded_error"
    body = json.loads(error_answer(Wire.OLLAMA_CHAT, ModelUnknown("No model x.")).body)
    assert body == {"error": "No model x."}


@pytest.mark.parametrize("wire", [Wire.CHAT, Wire.RESPONSES, Wire.MESSAGES, Wire.OLLAMA_CHAT])
def test_context_exceeded_has_the_words_that_agents_look_for(wire: Wire) -> None:
    error = ContextExceeded("x", context_tokens=4096, prompt_tokens=6031)
    text = error_answer(wire, error).body.decode()
    assert "This model's maximum context length is 4096 tokens. However, " in text
    assert "6031" in text
    if wire is Wire.CHAT:
        assert '"code":"context_length_exceeded"' in text
    if wire is Wire.MESSAGES:
        assert "prompt is too long: 6031 tokens > 4096 maximum" in text


@pytest.mark.parametrize("wire", [*STREAMED, Wire.OLLAMA_CHAT])
def test_refusal_has_the_words_that_make_agents_retry(wire: Wire) -> None:
    error = WorkerStopped("The engine passed its cap of 800 MiB.")
    for text in (error_answer(wire, error).body, error_event(wire, error)):
        assert b"503 service unavailable" in text
        assert b"800 MiB" in text


def test_details_that_json_cannot_say_are_written_as_text() -> None:
    answer = error_answer(Wire.CHAT, CoolheadError("x", what={1, 2}, kind=CoolheadError))
    assert json.loads(answer.body)["error"]["details"]["kind"].startswith("<class")


@pytest.mark.parametrize("wire", STREAMED)
def test_keepalive_says_nothing_and_is_the_wires_own(wire: Wire) -> None:
    stats = StreamStats()
    peek = FramePeek(wire, stats)
    for is_first in (True, False):
        event = keepalive_event(wire, "m", is_first=is_first, at_s=1.0)
        assert not event.startswith(b":")
        peek.feed(event, 0.0)
    assert peek.is_between_frames
    assert stats.tokens == 0
    assert not stats.is_complete


def test_responses_stream_opens_with_created() -> None:
    first = keepalive_event(Wire.RESPONSES, "m", is_first=True)
    later = keepalive_event(Wire.RESPONSES, "m", is_first=False)
    assert first.startswith(b"event: response.created\n")
    assert later.startswith(b"event: response.in_progress\n")


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
def test_kept_id_replaces_the_workers_in_every_event(size: int) -> None:
    stream = (
        b'event: response.created\ndata: {"type":"response.created","response":{"id":"resp_w"}}\n\n'
        b'data: {"type":"response.output_text.delta","delta":"\\"resp_w\\" resp_w"}\n\n'
        b'data: {"type":"response.completed","response":{"id":"resp_w","status":"completed"}}\n\n'
    )
    keep = KeptId("resp_own")
    sent = b"".join(keep(stream[at : at + size]) for at in range(0, len(stream), size)) + keep(b"")
    assert sent == stream.replace(b'"id":"resp_w"', b'"id":"resp_own"')


def test_ollama_keepalive_is_one_line() -> None:
    for wire in (Wire.OLLAMA_CHAT, Wire.OLLAMA_GENERATE):
        line = keepalive_event(wire, "m", is_first=True, at_s=0.0)
        assert line.endswith(b"\n")
        assert json.loads(line)["done"] is False


@pytest.mark.parametrize("wire", STREAMED)
def test_ending_is_complete_to_the_wires_own_eyes(wire: Wire) -> None:
    stats = StreamStats()
    FramePeek(wire, stats).feed(ending_events(wire, "m", "length", tokens=5), 0.0)
    assert stats.is_complete
    assert stats.tokens == 0
    assert stats.finish_reason in {"length", "max_tokens", "incomplete"}


def test_ending_goes_on_with_the_ids_of_the_stream() -> None:
    last = b'data: {"id":"chatcmpl-7","created":9,"model":"real","choices":[]}'
    frame = ending_events(Wire.CHAT, "m", "stop", last_frame=last).split(b"\n\n")[0]
    data: dict[str, Any] = json.loads(frame[6:])
    assert (data["id"], data["created"], data["model"]) == ("chatcmpl-7", 9, "real")


def test_error_from_worker_reads_the_engines_context_error() -> None:
    body = (
        b'{"error":{"code":400,"message":"request (5031 tokens) exceeds","type":'
        b'"exceed_context_size_error","n_prompt_tokens":5031,"n_ctx":2048}}'
    )
    error = error_from_worker(400, body)
    assert isinstance(error, ContextExceeded)
    assert error.details == {"context_tokens": 2048, "prompt_tokens": 5031}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, b'{"error":{"message":"bad messages","type":"x"}}', 400),
        (404, b'{"error":"nothing here"}', 404),
        (500, b'{"error":{"message":"boom"}}', 503),
        (500, b'{"error":{"message":"Compute error.","type":"server_error"}}', 503),
        (500, b'{"error":{"message":"failed to decode the batch","type":"server_error"}}', 503),
        (500, b'{"error":{"message":"image input is not supported","type":"server_error"}}', 400),
        (500, b'{"error":{"message":"roles must alternate","type":"server_error"}}', 400),
        (501, b'{"error":{"message":"no embeddings","type":"not_supported_error"}}', 400),
        (503, b'{"error":{"message":"Loading model"}}', 503),
        (401, b'{"error":{"message":"Invalid API Key"}}', 503),
        (400, b"\xff\xfe", 400),
        (400, b"[1]", 400),
        (500, b"", 503),
        (400, b'{"error":{"message":"[json.exception.type_error.302] must be number"}}', 400),
    ],
)
def test_error_from_worker_never_fails(status: int, body: bytes, expected: int) -> None:
    error = error_from_worker(status, body)
    assert status_of(error) == expected
    assert error.message


@pytest.mark.parametrize(
    ("status", "kind", "said", "told"),
    [
        (
            400,
            "invalid_request_error",
            "Field 'temperature': [json.exception.type_error.302] type must be number",
            "The engine cannot read this request: Field 'temperature': type must be number",
        ),
        (
            501,
            "not_supported_error",
            "This server does not support reranking. Start it with `--reranking`",
            "This model cannot do that: This server does not support reranking.",
        ),
        (
            500,
            "server_error",
            "audio input is not supported - hint: you may need to provide the mmproj",
            "This model takes no audio input.",
        ),
    ],
)
def test_error_from_worker_speaks_to_whoever_asks_not_to_whoever_starts_engines(
    status: int, kind: str, said: str, told: str
) -> None:
    error = error_from_worker(
        status, json.dumps({"error": {"message": said, "type": kind}}).encode()
    )
    assert error.message == told
    answer = error_answer(Wire.CHAT, error)
    assert answer.status == 400
    assert b"retry-after" not in dict(answer.headers)
