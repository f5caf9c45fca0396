"""A request's body, decoded as far as routing needs. Pure; called by `features.py` on the core loop.

One lenient struct serves every wire (OpenAI chat, completions, responses and embeddings, Anthropic
messages, Ollama): fields that routing does not read are skipped, and what is large but only counted
(tools, tool calls) stays raw.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from app.core.errors import RequestInvalid

_EMPTY = msgspec.Raw(b"")


class Part(msgspec.Struct, frozen=True, gc=False):
    """A piece of a message, or an item of a Responses input."""

    type: str = ""
    role: str = ""
    text: str | None = None
    content: "str | list[str | Part] | None" = None
    output: "str | list[str | Part] | None" = None
    arguments: str | None = None
    thinking: str | None = None
    images: list[msgspec.Raw] | None = None
    tool_calls: msgspec.Raw = _EMPTY
    input: msgspec.Raw = _EMPTY


class Body(msgspec.Struct, frozen=True, gc=False):
    """All that routing reads, of any wire."""

    model: str | None = None
    name: str | None = None
    stream: bool | None = None
    messages: list[Part] | None = None
    system: str | list[str | Part] | None = None
    instructions: str | list[str | Part] | None = None
    input: str | int | list[str | int | Part | list[int]] | None = None
    prompt: str | int | list[str | int | Part | list[int]] | None = None
    suffix: str | None = None
    images: list[msgspec.Raw] | None = None
    tools: msgspec.Raw = _EMPTY
    functions: msgspec.Raw = _EMPTY
    max_tokens: float | None = None
    max_completion_tokens: float | None = None
    max_output_tokens: float | None = None
    response_format: Any = None
    text: Any = None
    format: Any = None
    output_format: Any = None
    output_config: Any = None
    options: Any = None
    metadata: Any = None
    tags: Any = None
    session: Any = None
    user: Any = None
    prompt_cache_key: Any = None


_decoder = msgspec.json.Decoder(Body)


def decode_body(raw: bytes) -> Body:
    """The body of a request; an empty one counts as `{}`.

    Raises:
        RequestInvalid: when it is not JSON, or a field that routing reads has a wrong type.
    """
    if not raw:
        return Body()
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise RequestInvalid(f"The request's body does not fit: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"The request's body is not JSON: {error}.") from error
    except RecursionError as error:
        raise RequestInvalid("The request's body is nested too deeply.") from error


def holds_objects(raw: msgspec.Raw) -> bool:
    """Whether a raw list has anything in it."""
    return len(memoryview(raw)) > 2 and b"{" in bytes(raw)


def texts_of(content: "str | int | list[Any] | None") -> Iterator[str]:
    """Every text in a content field, in order; images and numbers are left out."""
    if content is None or isinstance(content, int):
        return
    if isinstance(content, str):
        yield content
        return
    for piece in content:
        if isinstance(piece, str):
            yield piece
        elif isinstance(piece, Part):
            if piece.text is not None:
                yield piece.text
            if piece.content is not None:
                yield from texts_of(piece.content)
            if piece.output is not None:
                yield from texts_of(piece.output)
