"""Events of our own inside a stream: keep-alives, errors, and the end of an answer cut short. Pure.

A comment line does not keep every client alive (two of nine ignore it), so that silence is filled with
events that the wire itself has.
"""

import time
from typing import Any

import msgspec

from app.core.errors import CoolheadError
from app.core.router.wire_errors import encode, envelope, sentence_of, status_of
from app.core.router.wire_kinds import Wire

DONE = b"data: [DONE]\n\n"
_CHUNK_ID = "chatcmpl-coolhead"
_RESPONSE_ID = "resp_coolhead"


def _sse(data: dict[str, Any], event: str = "") -> bytes:
    line = b"data: " + encode(data) + b"\n\n"
    return b"event: %b\n%b" % (event.encode(), line) if event else line


def keepalive_event(
    wire: Wire,
    model: str,
    *,
    is_first: bool,
    at_s: float | None = None,
    response_id: str = _RESPONSE_ID,
) -> bytes:
    """An event of the wire that says nothing.

    Args:
        wire: of the stream.
        model: name put into it.
        is_first: nothing has been sent yet (a Responses stream has to open with `response.created`).
        at_s: wall time for `created`; now when None.
        response_id: of the Responses stream; every lifecycle event has to name the same.
    """
    now = time.time() if at_s is None else at_s
    if wire is Wire.MESSAGES:
        return b'event: ping\ndata: {"type":"ping"}\n\n'
    if wire is Wire.RESPONSES:
        kind = "response.created" if is_first else "response.in_progress"
        response = {
            "id": response_id,
            "object": "response",
            "created_at": int(now),
            "status": "in_progress",
            "model": model,
            "output": [],
        }
        return _sse({"type": kind, "response": response, "sequence_number": 0}, kind)
    if wire is Wire.COMPLETIONS:
        choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": None}
        return _sse(_chunk("text_completion", model, now, choice))
    if wire.is_ollama:
        return _ollama_line(wire, model, now, {"done": False})
    choice = {"index": 0, "delta": {}, "finish_reason": None}
    return _sse(_chunk("chat.completion.chunk", model, now, choice))


def _chunk(kind: str, model: str, now: float, choice: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": _CHUNK_ID,
        "object": kind,
        "created": int(now),
        "model": model,
        "choices": [choice],
    }


def _ollama_line(wire: Wire, model: str, now: float, rest: dict[str, Any]) -> bytes:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
    text: dict[str, Any] = (
        {"response": ""}
        if wire is Wire.OLLAMA_GENERATE
        else {"message": {"role": "assistant", "content": ""}}
    )
    return encode({"model": model, "created_at": stamp, **text, **rest}) + b"\n"


def error_event(wire: Wire, error: CoolheadError) -> bytes:
    """The event that tells a client in mid-stream; the connection is reset after it."""
    status = status_of(error)
    body = envelope(wire, error, status)
    if wire.is_ollama:
        return encode(body) + b"\n"
    if wire is Wire.MESSAGES:
        return _sse(body, "error")
    if wire is Wire.RESPONSES:
        text = sentence_of(wire, error, status)
        own = {"type": "error", "code": error.code, "message": text, "param": None}
        return _sse({**own, **body, "sequence_number": 0}, "error")
    return _sse(body)


def ending_events(
    wire: Wire,
    model: str,
    reason: str,
    *,
    last_frame: bytes = b"",
    tokens: int = 0,
    response_id: str = _RESPONSE_ID,
) -> bytes:
    """Ends an answer cleanly that a limit of ours has cut.

    Args:
        wire: of the stream.
        model: name put into it where the last frame has none.
        reason: `length` or `stop`.
        last_frame: the newest event that went out; its ids are taken on.
        tokens: sent so far.
        response_id: of the Responses stream.
    """
    seen = _data_of(last_frame)
    now = float(seen.get("created") or time.time())
    model = str(seen.get("model") or model)
    if wire is Wire.MESSAGES:
        stop = "max_tokens" if reason == "length" else "end_turn"
        index = seen.get("index", 0)
        return (
            _sse({"type": "content_block_stop", "index": index}, "content_block_stop")
            + _sse(
                {
                    "type": "message_delta",
                    "delta": {"stop_reason": stop, "stop_sequence": None},
                    "usage": {"output_tokens": tokens},
                },
                "message_delta",
            )
            + _sse({"type": "message_stop"}, "message_stop")
        )
    if wire is Wire.RESPONSES:
        response = {
            "id": response_id,
            "object": "response",
            "created_at": int(now),
            "status": "incomplete",
            "incomplete_details": {"reason": "max_output_tokens"},
            "model": model,
            "output": [],
            "usage": {"input_tokens": 0, "output_tokens": tokens, "total_tokens": tokens},
        }
        kind = "response.incomplete"
        return _sse({"type": kind, "response": response, "sequence_number": 0}, kind)
    if wire.is_ollama:
        return _ollama_line(wire, model, now, {"done": True, "done_reason": reason})
    if wire is Wire.COMPLETIONS:
        choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": reason}
        end = _chunk("text_completion", model, now, choice)
    else:
        choice = {"index": 0, "delta": {}, "finish_reason": reason}
        end = _chunk("chat.completion.chunk", model, now, choice)
    end["id"] = str(seen.get("id") or end["id"])
    return _sse(end) + DONE


def _data_of(frame: bytes) -> dict[str, Any]:
    start = frame.find(b"data:")
    if start < 0:
        return {}
    try:
        found = msgspec.json.decode(frame[start + 5 :].strip())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
