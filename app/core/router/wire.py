"""The client-facing protocols: which one a path speaks, its errors, keep-alives and endings. Pure.

Used by the HTTP server (errors), the splice (keep-alives, error events) and the dispatcher. The parts
are in `wire_kinds`, `wire_errors` and `wire_events`; this is the one name to import them from.
"""

from app.core.router.wire_errors import (
    ErrorAnswer,
    error_answer,
    error_from_worker,
    retry_after_s,
    status_of,
)
from app.core.router.wire_events import ending_events, error_event, keepalive_event
from app.core.router.wire_kinds import Wire, plain_path, wire_of

__all__ = [
    "ErrorAnswer",
    "Wire",
    "ending_events",
    "error_answer",
    "error_event",
    "error_from_worker",
    "keepalive_event",
    "plain_path",
    "retry_after_s",
    "status_of",
    "wire_of",
]
