"""The Ollama face: its requests as ours, and our answers as its lines. Pure.

Used by the dispatcher for /api/chat and /api/generate, and by the pages for /api/version, /api/tags and
/api/show. Editors find models through these; the work itself is done by the chat and completions wires.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from app.core.errors import RequestInvalid
from app.core.router.ollama_options import completion_options
from app.core.router.wire_errors import encode
from app.core.router.wire_kinds import Wire

VERSION = "0.13.5"
"""What we claim to be: one client refuses to talk to anything below 0.13.4."""

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"
NDJSON = b"application/x-ndjson"
_TAG = ":latest"


def plain_name(name: str) -> str:
    """A model's name without the tag that Ollama's clients put behind it."""
    return name.removesuffix(_TAG)


def tagged(name: str) -> str:
    """A model's name with a tag, as Ollama's clients compare it."""
    return name if ":" in name else name + _TAG


def translated_request(wire: Wire, body: bytes) -> bytes:
    """The body of an Ollama request as one of ours: chat for /api/chat, completions for /api/generate.

    Raises:
        RequestInvalid: when it is not JSON, or a field has the wrong type.
    """
    try:
        asked = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"The body is not JSON: {error}.") from error
    if not isinstance(asked, dict):
        raise RequestInvalid("The body must be a JSON object.")
    model = asked.get("model") or asked.get("name")
    if not isinstance(model, str):
        raise RequestInvalid("The field model must be text.", param="model")
    sent: dict[str, Any] = {"model": plain_name(model)}
    is_stream = asked.get("stream") is not False
    sent["stream"] = is_stream
    if is_stream:
        sent["stream_options"] = {"include_usage": True}
    sent |= completion_options(asked)
    if wire is Wire.OLLAMA_CHAT:
        sent["messages"] = [_message(item) for item in _list(asked, "messages")]
        if asked.get("tools"):
            sent["tools"] = _list(asked, "tools")
        if "think" in asked:
            sent["chat_template_kwargs"] = {"enable_thinking": bool(asked["think"])}
    else:
        sent |= _generate(asked)
    return encode(sent)


def target_path(wire: Wire, body: bytes) -> str:
    """Where a translated request goes: /api/generate without `raw` is a chat of one message."""
    if wire is Wire.OLLAMA_CHAT or b'"messages":' in body:
        return CHAT_PATH
    return COMPLETIONS_PATH


def _generate(asked: Mapping[str, Any]) -> dict[str, Any]:
    prompt = asked.get("prompt", "")
    if not isinstance(prompt, str):
        raise RequestInvalid("The field prompt must be text.", param="prompt")
    suffix = asked.get("suffix")
    if asked.get("raw") or suffix:
        # Fill in the middle: clients send `suffix`, or a prompt with the model's own marks in it.
        return {"prompt": prompt} | ({"suffix": suffix} if suffix else {})
    messages: list[dict[str, Any]] = []
    if asked.get("system"):
        messages.append({"role": "system", "content": asked["system"]})
    messages.append(_message({"role": "user", "content": prompt, "images": asked.get("images")}))
    return {"messages": messages}


def _message(item: object) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise RequestInvalid("Each of messages must be an object.", param="messages")
    role = item.get("role", "user")
    content: Any = item.get("content") or ""
    images = item.get("images")
    if images:
        if not isinstance(images, list):
            raise RequestInvalid("The field images must be a list.", param="images")
        parts: list[dict[str, Any]] = [{"type": "text", "text": content}]
        parts += [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
            for image in images
        ]
        content = parts
    message: dict[str, Any] = {"role": role, "content": content}
    calls = item.get("tool_calls")
    if isinstance(calls, list) and calls:
        message["tool_calls"] = [_call_sent(number, call) for number, call in enumerate(calls)]
    if role == "tool":
        name = item.get("tool_name") or item.get("name") or ""
        message["tool_call_id"] = item.get("tool_call_id") or f"call_{name}"
    if item.get("thinking"):
        message["reasoning_content"] = item["thinking"]
    return message


def _call_sent(number: int, call: object) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise RequestInvalid("Each of tool_calls must have an object function.", param="messages")
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    name = str(function.get("name", ""))
    return {
        "id": f"call_{name}" if number == 0 else f"call_{name}_{number}",
        "type": "function",
        "function": {"name": name, "arguments": text},
    }


def _list(asked: Mapping[str, Any], name: str) -> list[Any]:
    value = asked.get(name, [])
    if not isinstance(value, list):
        raise RequestInvalid(f"The field {name} must be a list.", param=name)
    return value


class Lines:
    """Turns our events into Ollama's lines, in whatever pieces they come; b"" ends them.

    Args:
        wire: OLLAMA_CHAT or OLLAMA_GENERATE.
        model: as the client called it.
        now: wall time in seconds.
        clock: monotonic seconds, for durations.
    """

    def __init__(
        self,
        wire: Wire,
        model: str,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wire = wire
        self._model = model
        self._now = now
        self._clock = clock
        self._begun_s = clock()
        self._tail = b""
        self._reason = ""
        self._usage: dict[str, Any] = {}
        self._timings: dict[str, Any] = {}
        self._calls: dict[int, dict[str, str]] = {}

    def __call__(self, piece: bytes) -> bytes:
        """The lines for a piece of an event stream; the last line for b""."""
        if not piece:
            return self._line(self._ending(), {})
        *frames, self._tail = (self._tail + piece).replace(b"\r\n", b"\n").split(b"\n\n")
        return b"".join(self._of_frame(frame) for frame in frames)

    def whole(self, body: bytes) -> bytes:
        """A whole JSON answer of ours as one of Ollama's."""
        answer = msgspec.json.decode(body)
        self._note(answer)
        choice = (answer.get("choices") or [{}])[0]
        self._reason = choice.get("finish_reason") or "stop"
        message = choice.get("message") or {"content": choice.get("text", "")}
        self._take_calls(message)
        told = {
            "content": message.get("content") or "",
            "thinking": message.get("reasoning_content") or "",
        }
        return self._line(self._ending(), told).rstrip(b"\n")

    def _of_frame(self, frame: bytes) -> bytes:
        start = frame.find(b"data:")
        data = frame[start + 5 :].strip() if start >= 0 else b""
        if not data.startswith(b"{"):
            return b""
        event = msgspec.json.decode(data)
        if "error" in event:
            error = event["error"]
            text = error.get("message", "") if isinstance(error, dict) else error
            return encode({"error": text}) + b"\n"
        self._note(event)
        told = {"content": "", "thinking": ""}
        for choice in event.get("choices", ()):
            delta = choice.get("delta") or {"content": choice.get("text", "")}
            told["content"] += delta.get("content") or ""
            told["thinking"] += delta.get("reasoning_content") or ""
            self._take_calls(delta)
            self._reason = choice.get("finish_reason") or self._reason
        if not told["content"] and not told["thinking"]:
            return b""
        return self._line({"done": False}, told)

    def _note(self, event: Mapping[str, Any]) -> None:
        self._usage = event.get("usage") or self._usage
        self._timings = event.get("timings") or self._timings

    def _take_calls(self, delta: Mapping[str, Any]) -> None:
        """Arguments come in pieces here and whole there, so that calls are told at the end."""
        for number, part in enumerate(delta.get("tool_calls") or ()):
            call = self._calls.setdefault(part.get("index", number), {"name": "", "arguments": ""})
            function = part.get("function") or {}
            call["name"] += function.get("name") or ""
            call["arguments"] += function.get("arguments") or ""

    def _line(self, rest: Mapping[str, Any], told: Mapping[str, str]) -> bytes:
        now = self._now()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        line: dict[str, Any] = {
            "model": self._model,
            "created_at": f"{stamp}.{int(now % 1 * 1e6):06d}Z",
        }
        thinking = told.get("thinking")
        if self._wire is Wire.OLLAMA_GENERATE:
            line["response"] = told.get("content", "")
            if thinking:
                line["thinking"] = thinking
        else:
            message: dict[str, Any] = {"role": "assistant", "content": told.get("content", "")}
            if thinking:
                message["thinking"] = thinking
            if rest["done"] and self._calls:
                message["tool_calls"] = [_call_told(call) for call in self._calls.values()]
            line["message"] = message
        return encode({**line, **rest}) + b"\n"

    def _ending(self) -> dict[str, Any]:
        timings = self._timings
        return {
            "done": True,
            "done_reason": "length" if self._reason == "length" else "stop",
            "total_duration": int((self._clock() - self._begun_s) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": self._usage.get("prompt_tokens", 0),
            "prompt_eval_duration": int(timings.get("prompt_ms", 0) * 1e6),
            "eval_count": self._usage.get("completion_tokens", 0),
            "eval_duration": int(timings.get("predicted_ms", 0) * 1e6),
        }


def _call_told(call: Mapping[str, str]) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call["arguments"] or "{}")
    except msgspec.DecodeError:
        arguments = {"arguments": call["arguments"]}
    return {"function": {"name": call["name"], "arguments": arguments}}
