"""What happened, as immutable facts in the past tense, and the one place they are announced from.

Thread: events are published and delivered on the core loop; `ui/bridge.py` carries them further.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.core.lifecycle import AppState, ExitCause, PressureLevel, WorkerState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """`at` is wall time in seconds since 1970, for people; nothing is measured with it."""

    at: float = field(default=0.0, kw_only=True)


@dataclass(frozen=True, slots=True)
class AppStateChanged(Event):
    state: AppState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerStateChanged(Event):
    model_id: str
    state: WorkerState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LoadProgressed(Event):
    """`resident_bytes` of `planned_bytes` are in memory, seen from outside."""

    model_id: str
    resident_bytes: int
    planned_bytes: int


@dataclass(frozen=True, slots=True)
class WorkerExited(Event):
    model_id: str
    pid: int
    cause: ExitCause
    sentence: str
    evidence: Mapping[str, object] = field(default_factory=dict)
    """Figures behind the cause, and the samples of the last 5 s."""


@dataclass(frozen=True, slots=True)
class PressureChanged(Event):
    level: PressureLevel
    sentence: str


@dataclass(frozen=True, slots=True)
class StepTaken(Event):
    """A rung of the guard's ladder was carried out."""

    step: str
    cause: ExitCause | None
    model_id: str
    sentence: str


@dataclass(frozen=True, slots=True)
class GuardChanged(Event):
    """The guard was started, lost, or started again."""

    is_running: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class SettingsChanged(Event):
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoutesReloaded(Event):
    rules: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowRequested(Event):
    """A second start asked the first one to show itself."""


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """For the user: what was done, why with the numbers, and what can be done.

    `cause` groups notices: at most one per cause and 5 minutes is shown.
    """

    cause: str
    title: str
    text: str
    is_serious: bool = False


class EventBus:
    """Calls every subscriber, in order; one that fails is logged and the others still hear."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[Event], None]] = []

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Adds `callback`; the returned function takes it off again."""
        self._subscribers.append(callback)

        def unsubscribe() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return unsubscribe

    def publish(self, event: Event) -> None:
        for callback in tuple(self._subscribers):
            try:
                callback(event)
            except Exception:  # noqa: BLE001 - one deaf listener must not silence the rest
                _log.exception("a listener failed on %s", type(event).__name__)
