"""A request's body, decoded as far as routing needs. Pure; called by `features.py` on the core loop.

One lenient struct serves every wire (OpenAI chat, completions, responses and embeddings, Anthropic
messages, Ollama): fields that routing does not read are skipped, and what is large but only counted
(tools, tool calls) stays raw.
"""

from typing import Annotated, Any

import msgspec

from app.core.errors import RequestInvalid

EMPTY = msgspec.Raw(b"")


Probabilities = Annotated[float, msgspec.Meta(le=20)]
"""OpenAI's most. The engine keeps some 2 KB for each until the answer is whole: a vocabulary of them for
each token has cost a worker its life."""
Window = Annotated[float, msgspec.Meta(le=1_048_576)]
"""Tokens that a sampler looks back on; the engine reserves memory for all of them."""


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
    tool_calls: msgspec.Raw = EMPTY
    input: msgspec.Raw = EMPTY


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
    tools: msgspec.Raw = EMPTY
    functions: msgspec.Raw = EMPTY
    max_tokens: float | None = None
    max_completion_tokens: float | None = None
    max_output_tokens: float | None = None
    logprobs: bool | Probabilities | None = None
    top_logprobs: Probabilities | None = None
    n_probs: Probabilities | None = None
    repeat_last_n: Window | None = None
    dry_penalty_last_n: Window | None = None
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


class Content(msgspec.Struct, eq=False):
    """What was seen on one walk through a body.

    Attributes:
        texts: of every message, system prompt first.
        last_user: of the last message that the user wrote, without results of tools that travel in it.
        images: how many.
        call_bytes: what earlier tool calls take.
    """

    texts: list[str] = []
    last_user: tuple[str, ...] = ()
    images: int = 0
    call_bytes: int = 0

    def walk(self, content: "str | int | list[Any] | None") -> None:
        if isinstance(content, str):
            self.texts.append(content)
        elif isinstance(content, list):
            for piece in content:
                if isinstance(piece, Part):
                    self.walk_part(piece)
                elif isinstance(piece, str):
                    self.texts.append(piece)

    def walk_part(self, part: Part) -> None:
        texts = self.texts
        if part.text is not None:
            texts.append(part.text)
        content = part.content
        if content is not None:
            if isinstance(content, str):
                texts.append(content)
            else:
                self.walk(content)
            if part.role == "user":
                self._note_user(content)
        if part.output is not None:
            self.walk(part.output)
        if part.images:
            self.images += len(part.images)
        if part.type in _IMAGE_TYPES:
            self.images += 1
        if part.arguments is not None:
            self.call_bytes += len(part.arguments)
        if part.tool_calls is not EMPTY:
            self.call_bytes += size_of(part.tool_calls)
        if part.input is not EMPTY:
            self.call_bytes += size_of(part.input)

    def _note_user(self, content: "str | list[str | Part]") -> None:
        if isinstance(content, str):
            written: tuple[str, ...] = (content,)
        else:
            written = tuple(
                text
                for piece in content
                if (text := piece if isinstance(piece, str) else piece.text)
            )
        if written:
            self.last_user = written


_IMAGE_TYPES = frozenset({"image", "image_url", "input_image"})


def read_content(body: Body) -> Content:
    """One walk through everything that becomes the prompt."""
    seen = Content()
    if body.system is not None:
        seen.walk(body.system)
    if body.instructions is not None:
        seen.walk(body.instructions)
    if body.messages is not None:
        for message in body.messages:
            seen.walk_part(message)
    for given in (body.input, body.prompt, body.suffix):
        if given is not None:
            seen.walk(given)
            if isinstance(given, str) and not seen.last_user:
                seen.last_user = (given,)
    if body.images:
        seen.images += len(body.images)
    return seen


def size_of(raw: msgspec.Raw) -> int:
    """Bytes of a part that was left raw; 0 where it is absent."""
    return 0 if raw is EMPTY else len(memoryview(raw))


def holds_objects(raw: msgspec.Raw) -> bool:
    """Whether a raw list has anything in it."""
    return size_of(raw) > 2 and b"{" in bytes(raw)
