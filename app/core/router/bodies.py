"""Changes to a request's body, where a rule, a limit or a remote asks for one. Pure.

Only the top level is taken apart: values that are not touched keep their bytes. A request that nothing
asks to change is sent on as it came.
"""

from collections.abc import Mapping

import msgspec

from app.core.errors import RequestInvalid
from app.core.router.wire import Wire

Fields = dict[str, msgspec.Raw]

_decoder = msgspec.json.Decoder(Fields)
_OURS = ("tags", "session")
_TOKEN_KEYS: Mapping[Wire, tuple[str, ...]] = {
    Wire.CHAT: ("max_completion_tokens", "max_tokens"),
    Wire.COMPLETIONS: ("max_tokens",),
    Wire.RESPONSES: ("max_output_tokens",),
    Wire.MESSAGES: ("max_tokens",),
}


def fields_of(body: bytes) -> Fields:
    """Raises: RequestInvalid when it is not a JSON object."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RequestInvalid(f"The request's body is not a JSON object: {error}.") from error


def encode(fields: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(fields)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def for_remote(body: bytes, model: str, *, has_own_fields: bool) -> bytes:
    """The body without what is ours, asking for the remote's own `model` (empty: as it is)."""
    fields = fields_of(body)
    named = raw(model)
    if not has_own_fields and (not model or bytes(fields.get("model", b"")) == bytes(named)):
        return body
    for name in _OURS:
        fields.pop(name, None)
    if model:
        fields["model"] = named
    return encode(fields)


def with_limits(wire: Wire, body: bytes, max_tokens: int, max_seconds: float) -> bytes:
    """The body asking for no more than a limit of ours; for answers that are not streamed.

    The engine ends such an answer properly by itself. `t_max_predict_ms` is llama.cpp's.
    """
    keys = _TOKEN_KEYS.get(wire)
    if keys is None or not (max_tokens or max_seconds):
        return body
    fields: dict[str, object] = dict(fields_of(body))
    if max_tokens:
        name = next((key for key in keys if key in fields), keys[-1])
        asked = fields.get(name)
        number = msgspec.json.decode(asked) if isinstance(asked, msgspec.Raw) else None
        is_less = isinstance(number, int) and 0 <= number <= max_tokens
        fields[name] = number if is_less else max_tokens
    if max_seconds:
        fields["t_max_predict_ms"] = int(max_seconds * 1000)
    return encode(fields)


def with_system_prompt(wire: Wire, body: bytes, text: str) -> bytes:
    """The body with `text` in front of the system prompt that it has, or as its system prompt."""
    fields: dict[str, object] = dict(fields_of(body))
    if wire is Wire.COMPLETIONS:
        prompt = _plain(fields, "prompt")
        if isinstance(prompt, str):
            fields["prompt"] = f"{text}\n\n{prompt}"
    elif wire is Wire.RESPONSES:
        fields["instructions"] = _joined(text, _plain(fields, "instructions"))
    elif wire is Wire.MESSAGES:
        fields["system"] = _joined(text, _plain(fields, "system"))
    else:
        messages = _plain(fields, "messages")
        messages = list(messages) if isinstance(messages, list) else []
        first = messages[0] if messages else None
        # Many chat templates refuse a second system message.
        if isinstance(first, dict) and first.get("role") in {"system", "developer"}:
            messages[0] = {**first, "content": _joined(text, first.get("content"))}
        else:
            messages.insert(0, {"role": "system", "content": text})
        fields["messages"] = messages
    return encode(fields)


def _plain(fields: Mapping[str, object], name: str) -> object:
    value = fields.get(name)
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def _joined(text: str, given: object) -> object:
    if isinstance(given, list):
        return [{"type": "text", "text": text}, *given]
    return f"{text}\n\n{given}" if given else text
