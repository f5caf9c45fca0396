"""From a snapshot to what is shown: icon, state line, which menu entries can be used. Pure.

The tray, its menu and the stand-in window all draw on this, so that they never disagree. It says what
was probed: a command that was only sent changes nothing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from app.core.handle import Snapshot, WorkerSnapshot
from app.core.lifecycle import AppState, PressureLevel, WorkerState
from app.ui.i18n import tr


class IconKind(StrEnum):
    """Each has a shape and a colour of its own (`icons.py`)."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    PAUSED = "paused"
    PRESSURE = "pressure"
    FAILED = "failed"


class Entry(StrEnum):
    """What the menu offers, in its order."""

    START = "start"
    STOP = "stop"
    PAUSE = "pause"
    LEAVE_SAFE_MODE = "leave_safe_mode"
    MEMORY = "memory"
    SETTINGS = "settings"
    COPY = "copy"
    LOGS = "logs"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class EntryState:
    is_enabled: bool = True
    is_checked: bool = False
    is_visible: bool = True


@dataclass(frozen=True, slots=True)
class Unfit:
    """The model that requests would get, and that is not loaded as it does not fit.

    Attributes:
        way_out: the first thing that would fit, in a few words; empty where nothing does.
        sentence: the sum, and all ways out.
    """

    model_id: str
    way_out: str
    sentence: str

    @property
    def line(self) -> str:
        fits = f" ({tr('what fits')}: {self.way_out})" if self.way_out else ""
        return f"{self.model_id} {tr('does not fit')}{fits}"


_MENU_CHARACTERS = 72
"""A menu is as wide as its longest entry, and a sentence would push it off the screen."""


@dataclass(frozen=True, slots=True)
class ViewState:
    """`line` says it in one line, `details` are the sentences below it."""

    icon: IconKind
    line: str
    details: tuple[str, ...]
    entries: Mapping[Entry, EntryState]

    @property
    def menu_line(self) -> str:
        """`line`, cut where it would make the menu too wide; `tooltip` has all of it."""
        if len(self.line) <= _MENU_CHARACTERS:
            return self.line
        return self.line[: _MENU_CHARACTERS - 1].rstrip(" .,;:") + "…"

    @property
    def tooltip(self) -> str:
        return "\n".join(("Coolhead", self.line, *self.details))


_OPEN = frozenset({AppState.STARTING, AppState.READY, AppState.BUSY, AppState.PAUSED})
_SERVING = frozenset({AppState.READY, AppState.BUSY, AppState.PAUSED})
_CLOSED = frozenset({AppState.STOPPED, AppState.FAILED})


def view_state(snapshot: Snapshot, unfit: Unfit | None = None) -> ViewState:
    """What `snapshot` looks like.

    Args:
        snapshot: as it was probed.
        unfit: set while the model that requests would get does not fit.
    """
    if snapshot.state not in _SERVING:
        unfit = None
    state = snapshot.state
    return ViewState(
        icon=_icon(snapshot, unfit),
        line=_line(snapshot, unfit),
        details=_details(snapshot, unfit),
        entries={
            Entry.START: EntryState(state in _CLOSED),
            Entry.STOP: EntryState(state in _OPEN),
            Entry.PAUSE: EntryState(state in _OPEN, snapshot.is_paused),
            Entry.LEAVE_SAFE_MODE: EntryState(is_visible=snapshot.is_safe_mode),
            Entry.MEMORY: EntryState(),
            Entry.SETTINGS: EntryState(),
            Entry.COPY: EntryState(bool(snapshot.endpoint)),
            Entry.LOGS: EntryState(),
            Entry.QUIT: EntryState(),
        },
    )


def _icon(snapshot: Snapshot, unfit: Unfit | None) -> IconKind:
    if snapshot.state is AppState.FAILED:
        return IconKind.FAILED
    if snapshot.state in {AppState.STOPPED, AppState.STOPPING}:
        return IconKind.STOPPED
    if snapshot.pressure is not PressureLevel.NORMAL:
        return IconKind.PRESSURE
    if snapshot.is_paused or snapshot.state is AppState.PAUSED:
        return IconKind.PAUSED
    if snapshot.state is AppState.STARTING:
        return IconKind.STARTING
    if unfit is not None:
        return IconKind.PRESSURE
    if snapshot.state is AppState.BUSY:
        return IconKind.BUSY
    return IconKind.STARTING if _loading(snapshot) else IconKind.READY


def _line(snapshot: Snapshot, unfit: Unfit | None) -> str:
    state = snapshot.state
    if state is AppState.STOPPED:
        return _joined(tr("Stopped"), snapshot.reason)
    if state is AppState.FAILED:
        return _joined(tr("Failed"), snapshot.reason)
    if state is AppState.STOPPING:
        left = f"{snapshot.in_flight} " + tr("in-flight") if snapshot.in_flight else ""
        return _joined(tr("Stopping"), left or snapshot.reason)
    models = ", ".join(filter(None, (_models(snapshot), unfit.line if unfit else "")))
    if snapshot.is_paused or state is AppState.PAUSED:
        return _joined(tr("Paused"), models)
    if state is AppState.STARTING:
        return _joined(tr("Starting"), models or snapshot.reason)
    if state is AppState.BUSY:
        speed = f"{snapshot.tokens_per_s:.1f} " + tr("tokens/s") if snapshot.tokens_per_s else ""
        waiting = f"{snapshot.queued} " + tr("waiting") if snapshot.queued else ""
        return _joined(tr("Busy"), ", ".join(part for part in (models, speed, waiting) if part))
    return _joined(tr("Ready"), models or tr("no model loaded"))


def _details(snapshot: Snapshot, unfit: Unfit | None) -> tuple[str, ...]:
    found: list[str] = [unfit.sentence] if unfit else []
    if snapshot.is_safe_mode:
        found.append(snapshot.safe_mode_sentence or tr("Safe mode: no model is loaded unasked."))
    if snapshot.pause_sentence:
        found.append(snapshot.pause_sentence)
    if snapshot.pressure is not PressureLevel.NORMAL:
        found.append(snapshot.pressure_sentence or tr("Memory is short."))
    found += [
        f"{worker.model_id}: {worker.reason}"
        for worker in snapshot.workers
        if worker.state is WorkerState.FAILED and worker.reason
    ]
    return tuple(dict.fromkeys(found))


def _models(snapshot: Snapshot) -> str:
    return ", ".join(
        _worker_text(worker)
        for worker in snapshot.workers
        if worker.state not in {WorkerState.UNLOADED, WorkerState.FAILED}
    )


def _worker_text(worker: WorkerSnapshot) -> str:
    if worker.state is WorkerState.STARTING:
        return tr("loading") + f" {worker.model_id} {worker.load_fraction:.0%}".replace("%", " %")
    if worker.state in {WorkerState.DRAINING, WorkerState.STOPPING}:
        return tr("unloading") + f" {worker.model_id}"
    return worker.model_id


def _loading(snapshot: Snapshot) -> bool:
    return any(worker.state is WorkerState.STARTING for worker in snapshot.workers)


def _joined(head: str, tail: str) -> str:
    return f"{head}: {tail}" if tail else head
