"""An answer that a rule gives by itself, in the shape of the wire that asked. Pure."""

import time

import msgspec

from app.core.router.wire import Wire

JSON = b"application/json"
EVENTS = b"text/event-stream"
_ID = "coolhead-canned"


def canned_answer(wire: Wire, model: str, text: str, is_stream: bool) -> tuple[bytes, bytes]:
    """Body and content type."""
    made = {
        Wire.MESSAGES: _messages,
        Wire.RESPONSES: _responses,
        Wire.COMPLETIONS: _completions,
    }.get(wire, _chat)
    if wire.is_ollama:
        return _ollama(wire, model, text), b"application/x-ndjson" if is_stream else JSON
    whole, events = made(model, text)
    if not is_stream:
        return msgspec.json.encode(whole), JSON
    return b"".join(
        _event(event, named=wire in {Wire.MESSAGES, Wire.RESPONSES}) for event in events
    ) + (b"data: [DONE]\n\n" if wire not in {Wire.MESSAGES, Wire.RESPONSES} else b""), EVENTS


Shapes = tuple[dict[str, object], list[dict[str, object]]]


def _event(event: dict[str, object], *, named: bool) -> bytes:
    data = b"data: " + msgspec.json.encode(event) + b"\n\n"
    return f"event: {event['type']}\n".encode() + data if named else data


def _chat(model: str, text: str) -> Shapes:
    head = {"id": _ID, "created": int(time.time()), "model": model}
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": usage,
    }
    chunk = {**head, "object": "chat.completion.chunk"}
    events = [
        {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage},
    ]
    return whole, events


def _completions(model: str, text: str) -> Shapes:
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    whole: dict[str, object] = {
        "id": _ID,
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}],
        "usage": usage,
    }
    return whole, [whole]


def _messages(model: str, text: str) -> Shapes:
    usage = {"input_tokens": 0, "output_tokens": 0}
    message: dict[str, object] = {
        "id": _ID,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    whole = {**message, "content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
    block = {"type": "text", "text": ""}
    delta = {"type": "text_delta", "text": text}
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    events: list[dict[str, object]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 0}},
        {"type": "message_stop"},
    ]
    return whole, events


def _responses(model: str, text: str) -> Shapes:
    part = {"type": "output_text", "text": text, "annotations": []}
    item = {"type": "message", "id": f"msg_{_ID}", "role": "assistant", "status": "completed"}
    done = {**item, "content": [part]}
    head = {
        "id": f"resp_{_ID}",
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
    }
    usage = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
    whole: dict[str, object] = {**head, "status": "completed", "output": [done], "usage": usage}
    started = {**head, "status": "in_progress", "output": []}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    events: list[dict[str, object]] = [
        {"type": "response.created", "response": started},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        {"type": "response.output_text.delta", **place, "delta": text},
        {"type": "response.output_text.done", **place, "text": text},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": done},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [{**event, "sequence_number": at} for at, event in enumerate(events)]


def _ollama(wire: Wire, model: str, text: str) -> bytes:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    said: dict[str, object] = (
        {"response": text}
        if wire is Wire.OLLAMA_GENERATE
        else {"message": {"role": "assistant", "content": text}}
    )
    end = {"done": True, "done_reason": "stop"}
    return msgspec.json.encode({"model": model, "created_at": stamp, **said, **end}) + b"\n"
