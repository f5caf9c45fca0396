"""Errors as each wire says them: one table error -> status, one function status -> envelope. Pure.

The words matter: agents read them. "maximum context length is N tokens" makes them compact; "503
service unavailable" makes one of them retry; a Retry-After above 60 s makes one give up at once, and
a 429 or 503 without it another.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from app.core.errors import (
    AdmissionClosed,
    ContextExceeded,
    CoolheadError,
    DoesNotFit,
    EngineMissing,
    GuardError,
    ModelFileInvalid,
    ModelFileMissing,
    ModelUnknown,
    PathUnknown,
    QueueFull,
    RequestError,
    RequestForbidden,
    RequestInvalid,
    RequestUnsupported,
    RoutesInvalid,
    SettingsInvalid,
    TargetFailed,
    WorkerError,
)
from app.core.router.wire_kinds import Wire

RETRY_AFTER_S = 15
"""When the error names no time: nine agents of nine got through with it."""

_STATUSES: dict[type[CoolheadError], int] = {
    SettingsInvalid: 400,
    RoutesInvalid: 400,
    ModelUnknown: 404,
    ModelFileMissing: 404,
    ModelFileInvalid: 422,
    DoesNotFit: 503,
    EngineMissing: 501,
    WorkerError: 503,
    GuardError: 503,
    RequestInvalid: 400,
    PathUnknown: 404,
    RequestForbidden: 403,
    ContextExceeded: 400,
    QueueFull: 429,
    AdmissionClosed: 503,
    TargetFailed: 502,
}

_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_WORDS = {
    429: "429 too many requests",
    500: "500 server error",
    501: "501 not implemented",
    502: "502 bad gateway, server error",
    503: "503 service unavailable",
}

_ENGINE_FAULTS = (
    "compute error",
    "invalid input batch",
    "decode",
    "alloc",
    "out of memory",
    "context size",
    "loading",
)
"""Words of llama.cpp where it failed itself. All else that it calls a server error, it said before the
model ran: a request that it, or the model's chat template, does not take. Agents retry a 503 for
minutes and get the same."""

_EXCEPTION = re.compile(r"\[json\.exception\.[\w.]+\]\s*")
_NO_INPUT = re.compile(r"(\w+) input is not supported")

_JSON = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as one wire says it; goes into `Exchange.send`."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def status_of(error: CoolheadError) -> int:
    """The HTTP status of an error; a `RequestError` may name its own in `details["status"]`."""
    if isinstance(error, RequestError):
        own = error.details.get("status")
        if isinstance(own, int) and 400 <= own <= 599:
            return own
    if isinstance(error, DoesNotFit) and error.details.get("is_permanent"):
        return 400  # agents would come back to a 5xx for ever
    for kind in type(error).__mro__:
        if kind in _STATUSES:
            return _STATUSES[kind]
    return 500


def retry_after_s(error: CoolheadError) -> int:
    """Seconds a client is asked to wait: 1 to 60, whatever the error says."""
    asked = error.details.get("retry_after_s")
    if not isinstance(asked, int | float) or math.isnan(asked):
        return RETRY_AFTER_S
    return math.ceil(min(60, max(1, asked)))


def sentence_of(wire: Wire, error: CoolheadError, status: int) -> str:
    """The error's words with what clients look for in them."""
    if isinstance(error, ContextExceeded):
        return _context_sentence(wire, error)
    words = _WORDS.get(status)
    if words is None or words in error.message:
        return error.message
    return f"{error.message} ({words})"


def _context_sentence(wire: Wire, error: ContextExceeded) -> str:
    room, prompt = error.details.get("context_tokens"), error.details.get("prompt_tokens")
    if not room or not prompt:
        return error.message
    known = (
        f"This model's maximum context length is {room} tokens. However, your prompt is {prompt} "
        "tokens long. Please shorten it, or raise the context length in the settings."
    )
    if wire is Wire.MESSAGES:
        return f"prompt is too long: {prompt} tokens > {room} maximum. {known}"
    return known


def envelope(wire: Wire, error: CoolheadError, status: int) -> dict[str, Any]:
    """The error object of `wire`. `source` tells our own errors from an engine's."""
    text = sentence_of(wire, error, status)
    if wire.is_ollama:
        return {"error": text}
    if wire is Wire.MESSAGES:
        kind = _ANTHROPIC_TYPES.get(
            status, "api_error" if status >= 500 else "invalid_request_error"
        )
        return {
            "type": "error",
            "error": {"type": kind, "message": text, "code": error.code, "source": "coolhead"},
        }
    kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {
        "error": {
            "message": text,
            "type": kind,
            "param": error.details.get("param"),
            "code": error.code,
            "source": "coolhead",
            "details": dict(error.details),
        }
    }


def error_answer(wire: Wire, error: CoolheadError) -> ErrorAnswer:
    """Status, headers (Retry-After on 429 and 503) and body for `error`."""
    status = status_of(error)
    headers: tuple[tuple[bytes, bytes], ...] = (_JSON,)
    if status in {429, 503}:
        headers = (_JSON, (b"retry-after", b"%d" % retry_after_s(error)))
    elif status == 401:
        headers = (_JSON, (b"www-authenticate", b"Bearer"))
    return ErrorAnswer(status, headers, encode(envelope(wire, error, status)))


def encode(value: object) -> bytes:
    """JSON; what JSON cannot say is written as its text."""
    return msgspec.json.encode(value, enc_hook=str)


def error_from_worker(status: int, body: bytes) -> CoolheadError:
    """A worker's own error answer as one of ours (context exceeded, malformed, failed)."""
    text, kind, prompt, room = "", "", 0, 0
    try:
        found = msgspec.json.decode(body)
        inner = found.get("error", found) if isinstance(found, dict) else found
        if isinstance(inner, dict):
            text = str(inner.get("message", ""))
            kind = str(inner.get("type", ""))
            prompt, room = inner.get("n_prompt_tokens", 0), inner.get("n_ctx", 0)
        elif isinstance(inner, str):
            text = inner
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = ""
    if kind == "exceed_context_size_error":
        return ContextExceeded(
            text or "The prompt is longer than the context.",
            context_tokens=room,
            prompt_tokens=prompt,
        )
    text = text[:2000] or f"The engine answered with status {status}."
    if _EXCEPTION.search(text):
        text = f"The engine cannot read this request: {_EXCEPTION.sub('', text)}"
    lacking = _NO_INPUT.match(text)
    if lacking is not None:
        return RequestUnsupported(f"This model takes no {lacking[1]} input.", engine_type=kind)
    if kind == "not_supported_error":
        # What to start the engine with is no business of who asks it.
        told = text.partition(" Start it with")[0].strip()
        return RequestUnsupported(f"This model cannot do that: {told}", engine_type=kind)
    if 400 <= status < 500 and status not in {401, 403, 429}:
        return RequestInvalid(text, status=status, engine_type=kind)
    if _is_clients_fault(kind, text):
        return RequestInvalid(text, status=400, engine_type=kind)
    return WorkerError(f"The engine refused the request: {text}", engine_status=status)


def _is_clients_fault(kind: str, text: str) -> bool:
    words = text.lower()
    return kind == "server_error" and not any(fault in words for fault in _ENGINE_FAULTS)
