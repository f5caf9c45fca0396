"""Which client-facing protocol a path speaks. Pure; the rest of `wire*.py` hangs on it."""

from enum import StrEnum


class Wire(StrEnum):
    """A client-facing protocol. OTHER answers errors as OpenAI does; OLLAMA is its side paths."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OLLAMA_CHAT = "ollama_chat"
    OLLAMA_GENERATE = "ollama_generate"
    OLLAMA = "ollama"
    OTHER = "other"

    is_ollama: bool

    def __init__(self, value: str) -> None:
        self.is_ollama = value.startswith("ollama")


_PATHS = {
    "/v1/chat/completions": Wire.CHAT,
    "/chat/completions": Wire.CHAT,
    "/api/v0/chat/completions": Wire.CHAT,
    "/v1/completions": Wire.COMPLETIONS,
    "/completions": Wire.COMPLETIONS,
    "/api/v0/completions": Wire.COMPLETIONS,
    "/v1/responses": Wire.RESPONSES,
    "/responses": Wire.RESPONSES,
    "/v1/messages": Wire.MESSAGES,
    "/messages": Wire.MESSAGES,
    "/v1/messages/count_tokens": Wire.MESSAGES,
    "/api/chat": Wire.OLLAMA_CHAT,
    "/api/generate": Wire.OLLAMA_GENERATE,
}
KNOWN_PATHS = frozenset(_PATHS)
_OLLAMA_SIDE = frozenset(
    {"/api/version", "/api/tags", "/api/show", "/api/ps", "/api/pull", "/api/embed"}
)


def plain_path(path: str) -> str:
    """`path` without the convention's `/model/<name>` in front."""
    if path.startswith("/model/"):
        cut = path.find("/", 7)
        return path[cut:] if cut > 0 else "/"
    return path


def wire_of(path: str) -> Wire:
    """The wire of a path (query cut off); with or without `/model/<name>` in front."""
    wire = _PATHS.get(path)
    if wire is not None:
        return wire
    path = plain_path(path)
    if path in _OLLAMA_SIDE:
        return Wire.OLLAMA
    return _PATHS.get(path, Wire.OTHER)
