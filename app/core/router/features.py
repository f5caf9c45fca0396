"""What rules may look at in a request, taken out of it once. Pure.

Called on the core loop when a request's body is complete, and in-process by users of the library.
The body is decoded once (`body.py`); its raw bytes are kept, because they are what a worker gets.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from app.core.errors import RequestInvalid
from app.core.router.body import Body, Part, decode_body, holds_objects, texts_of

Wire = Literal["chat", "completions", "responses", "messages", "embeddings", "ollama", "other"]

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
TAGS_HEADER = "x-coolhead-tags"
SESSION_HEADERS = ("x-coolhead-session", "x-claude-code-session-id", "x-session-id", "session_id")

# What one picture costs in the prompt: vision encoders in use give 256 to 1,500 tokens.
IMAGE_TOKENS = 768

_WIRES: Mapping[str, Wire] = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/messages": "messages",
    "/messages/count_tokens": "messages",
    "/embeddings": "embeddings",
    "/api/chat": "ollama",
    "/api/generate": "ollama",
    "/api/embed": "ollama",
    "/api/embeddings": "ollama",
}


class RequestFeatures(msgspec.Struct, frozen=True, gc=False):
    """A request as rules see it.

    Attributes:
        path: without query and without `/model/<name>` in front.
        wire: the protocol that the path speaks.
        model: the name asked for: the path's, else the body's; empty where there is none.
        path_model: the name in `/model/<name>/...`; empty where there is none.
        tags: our own field `tags` and header `X-Coolhead-Tags`.
        headers: names in lower case.
        text: every message's text, system prompt first, joined by newlines.
        last_user: the text of the last message that the user wrote.
        characters: of `text`.
        tokens: estimate of the whole prompt, with tools and images.
        max_tokens: what the client allows for the answer; None where it does not say.
        session: what holds a client's requests together; empty where it does not say.
        has_own_fields: the body carries fields that are ours, to be taken out for a remote.
        body: the raw bytes.
    """

    path: str = ""
    wire: Wire = "other"
    model: str = ""
    path_model: str = ""
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = NO_HEADERS
    text: str = ""
    last_user: str = ""
    characters: int = 0
    tokens: int = 0
    has_tools: bool = False
    has_images: bool = False
    wants_json: bool = False
    is_stream: bool = False
    max_tokens: int | None = None
    session: str = ""
    has_own_fields: bool = False
    body: bytes = b""


def extract(path: str, headers: Mapping[str, str], body: bytes) -> RequestFeatures:
    """The features of a request.

    Args:
        path: as sent, query included.
        headers: names in lower case.
        body: JSON as sent; empty for none.

    Raises:
        RequestInvalid: when the body is not JSON or of a wrong shape.
    """
    clean, path_model = split_path(path)
    wire = _WIRES.get(clean.removeprefix("/v1"), "other")
    content = decode_body(body)
    texts = list(_texts(content))
    text = texts[0] if len(texts) == 1 else "\n".join(texts)
    has_images, image_count = _images(content)
    tools_bytes = len(memoryview(content.tools)) + len(memoryview(content.functions))
    return RequestFeatures(
        path=clean,
        wire=wire,
        model=path_model or content.model or content.name or "",
        path_model=path_model,
        tags=_tags(content.tags, headers),
        headers=headers,
        text=text,
        last_user=_last_user(content),
        characters=len(text),
        tokens=estimate_tokens(text)
        + (tools_bytes + _call_bytes(content)) // 4
        + IMAGE_TOKENS * image_count,
        has_tools=holds_objects(content.tools) or holds_objects(content.functions),
        has_images=has_images,
        wants_json=_wants_json(content),
        # Ollama streams unless told not to.
        is_stream=wire == "ollama" if content.stream is None else content.stream,
        max_tokens=_max_tokens(content),
        session=_session(content, headers),
        has_own_fields=content.tags is not None or content.session is not None,
        body=body,
    )


def split_path(path: str) -> tuple[str, str]:
    """The path without query, trailing slash and `/model/<name>`, and that name."""
    path = path.partition("?")[0]
    name = ""
    if path.startswith("/model/"):
        name, _, rest = path[len("/model/") :].partition("/")
        path = "/" + rest
        if "%" in name:
            from urllib.parse import unquote

            name = unquote(name)
    return (path.rstrip("/") or "/") if len(path) > 1 else path, name


def estimate_tokens(text: str) -> int:
    """About how many tokens `text` is, for any script.

    A quarter of a token for each ASCII character, 0.625 for Cyrillic, Greek, Arabic and the like (two
    bytes of UTF-8), 1.0 for Chinese, Japanese, Korean and the like (three), 1.4 for emoji (four).
    """
    characters = len(text)
    if text.isascii():
        return (characters + 3) // 4
    utf8_bytes = len(text.encode("utf-8", "surrogatepass"))
    return (3 * utf8_bytes - characters + 7) // 8


def _texts(body: Body) -> Iterator[str]:
    for content in (body.system, body.instructions):
        yield from texts_of(content)
    if body.messages is not None:
        yield from texts_of(body.messages)
    yield from texts_of(body.input)
    yield from texts_of(body.prompt)
    yield from texts_of(body.suffix)


def _last_user(body: Body) -> str:
    for items in (body.messages, body.input):
        if isinstance(items, list):
            for item in reversed(items):
                if isinstance(item, Part) and item.role == "user":
                    written = _written(item)
                    if written:
                        return written
    for content in (body.input, body.prompt):
        if isinstance(content, str):
            return content
    return ""


def _written(message: Part) -> str:
    """A message's own text, without the results of tools that travel in it."""
    content = message.content
    if content is None or isinstance(content, str):
        return content or message.text or ""
    texts = (piece if isinstance(piece, str) else piece.text for piece in content)
    return "\n".join(text for text in texts if text)


def _images(body: Body) -> tuple[bool, int]:
    count = len(body.images or ())
    for items in (body.messages, body.input):
        if isinstance(items, list):
            count += _count_images(items)
    return count > 0, count


def _count_images(pieces: list[Any]) -> int:
    count = 0
    for piece in pieces:
        if isinstance(piece, Part):
            if "image" in piece.type and piece.type in {"image", "image_url", "input_image"}:
                count += 1
            if piece.images:
                count += len(piece.images)
            if isinstance(piece.content, list):
                count += _count_images(piece.content)
            if isinstance(piece.output, list):
                count += _count_images(piece.output)
    return count


def _call_bytes(body: Body) -> int:
    """What earlier tool calls take in the prompt."""
    total = 0
    for items in (body.messages, body.input):
        if isinstance(items, list):
            for item in items:
                if isinstance(item, Part):
                    total += len(memoryview(item.tool_calls)) + len(item.arguments or "")
                    if isinstance(item.content, list):
                        total += sum(
                            len(memoryview(piece.input))
                            for piece in item.content
                            if isinstance(piece, Part)
                        )
    return total


def _wants_json(body: Body) -> bool:
    text_format = body.text.get("format") if isinstance(body.text, dict) else None
    config = body.output_config
    config_format = config.get("format") if isinstance(config, dict) else None
    for shape in (body.response_format, text_format, body.output_format, config_format):
        if isinstance(shape, dict) and shape.get("type") in {"json_object", "json_schema"}:
            return True
    return body.format == "json" or isinstance(body.format, dict)


def _max_tokens(body: Body) -> int | None:
    for value in (body.max_completion_tokens, body.max_output_tokens, body.max_tokens):
        if value is not None:
            return int(value)
    if isinstance(body.options, dict):
        limit = body.options.get("num_predict")
        if isinstance(limit, int) and limit >= 0:
            return limit
    return None


def _tags(given: Any, headers: Mapping[str, str]) -> tuple[str, ...]:
    header = headers.get(TAGS_HEADER)
    if given is None and header is None:
        return ()
    found: dict[str, None] = {}
    if isinstance(given, str):
        given = given.split(",")
    if given is not None:
        if not isinstance(given, list) or not all(isinstance(tag, str) for tag in given):
            raise RequestInvalid("`tags` takes a list of texts, or one text with commas.")
        found.update(dict.fromkeys(tag.strip() for tag in given))
    if header:
        found.update(dict.fromkeys(tag.strip() for tag in header.split(",")))
    found.pop("", None)
    return tuple(found)


def _session(body: Body, headers: Mapping[str, str]) -> str:
    for name in SESSION_HEADERS:
        value = headers.get(name)
        if value:
            return value
    metadata = body.metadata if isinstance(body.metadata, dict) else {}
    for given in (
        body.session,
        body.prompt_cache_key,
        metadata.get("session_id"),
        body.user,
        metadata.get("user_id"),
    ):
        if isinstance(given, str) and given:
            return given
    return ""
