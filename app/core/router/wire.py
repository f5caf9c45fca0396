"""The client-facing protocols: which one a path speaks, its errors, keep-alives and endings. Pure.

Used by the HTTP server (errors), the splice (keep-alives, error events) and the dispatcher.
"""

from dataclasses import dataclass
from enum import StrEnum

from app.core.errors import CoolheadError


class Wire(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    OLLAMA_CHAT = "ollama_chat"
    OLLAMA_GENERATE = "ollama_generate"
    OLLAMA = "ollama"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as one wire says it; goes into `Exchange.send`."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def wire_of(path: str) -> Wire:
    """The wire of a path (query cut off); with or without the `/model/<name>` prefix."""
    raise NotImplementedError


def error_answer(wire: Wire, error: CoolheadError) -> ErrorAnswer:
    """Status, headers (Retry-After on 429 and 503) and body for `error`."""
    raise NotImplementedError


def error_event(wire: Wire, error: CoolheadError) -> bytes:
    """The event that tells a client in mid-stream; the stream is aborted after it."""
    raise NotImplementedError


def keepalive_event(wire: Wire, model: str, *, is_first: bool) -> bytes:
    """An event of the wire that says nothing. `is_first`: nothing has been sent yet."""
    raise NotImplementedError


def ending_events(wire: Wire, model: str, reason: str) -> bytes:
    """Ends an answer cleanly that a limit of ours has cut: `reason` is `length` or `stop`."""
    raise NotImplementedError


def error_from_worker(status: int, body: bytes) -> CoolheadError:
    """The worker's own error answer as one of ours (context exceeded, malformed, failed)."""
    raise NotImplementedError
