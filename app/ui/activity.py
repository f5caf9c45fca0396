"""What has happened, as lines for people: what was written down before, and what is heard. Pure.

Heard from the start of the tray, shown on the activity page.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from app.core.event_log import KEPT
from app.core.events import (
    AppStateChanged,
    Event,
    GuardChanged,
    LoadProgressed,
    Notice,
    PressureChanged,
    RoutesReloaded,
    SettingsChanged,
    StepTaken,
    WindowRequested,
    WorkerExited,
    WorkerStateChanged,
)
from app.ui.i18n import tr

LINES_KEPT = 300
_KINDS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in KEPT}


def line_of(happened: Event) -> str:
    """One event in words; empty for what is no news (progress, a window that was asked for)."""
    match happened:
        case LoadProgressed() | WindowRequested():
            return ""
        case AppStateChanged(state=state, reason=reason):
            return _joined(f"Coolhead: {state.value}", reason)
        case WorkerStateChanged(model_id=model_id, state=state, reason=reason):
            return _joined(f"{model_id}: {state.value}", reason)
        case WorkerExited(model_id=model_id, sentence=sentence):
            return _joined(f"{model_id}: {tr('ended')}", sentence)
        case PressureChanged(level=level, sentence=sentence):
            return _joined(f"{tr('Memory')}: {level.name.lower().replace('_', '-')}", sentence)
        case StepTaken(step=step, sentence=sentence):
            return sentence or step.replace("_", " ")
        case GuardChanged(sentence=sentence):
            return _joined(tr("Guard"), sentence)
        case SettingsChanged(keys=keys):
            return _joined(tr("Settings changed"), ", ".join(keys))
        case RoutesReloaded(rules=rules, problems=problems):
            return _joined(f"{tr('Routing rules loaded')}: {rules}", "; ".join(problems))
        case Notice(title=title, text=text):
            return _joined(title, text)
        case _:
            return type(happened).__name__


def _joined(head: str, tail: str) -> str:
    return f"{head}. {tail}" if tail else head


def event_of(record: Mapping[str, Any]) -> Event | None:
    """The event behind a line of the event log; None for one of another version of Coolhead."""
    kind = _KINDS.get(str(record.get("event")))
    if kind is None:
        return None
    try:
        return msgspec.convert(record, kind)
    except msgspec.ValidationError:
        return None


class ActivityLog:
    """The last lines, newest last; `version` rises with each change. Thread: GUI."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._first_s = 0.0
        self.version = 0

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def add(self, happened: Iterable[Event]) -> None:
        for one in happened:
            at_s = one.at or time.time()
            self._first_s = self._first_s or at_s
            line = _dated(one, at_s)
            if line:
                self._lines.append(line)
                self.version += 1

    def add_earlier(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Puts what was written down before the first event heard here in front of it."""
        before = []
        for record in records:
            one = event_of(record)
            # The log rounds its times, so that ours are rounded to compare.
            if one is None or (self._first_s and one.at >= round(self._first_s, 3)):
                continue
            before.append(_dated(one, one.at))
        room = LINES_KEPT - len(self._lines)
        found = [line for line in before if line]
        if self._lines and found and found[-1] == self._lines[0]:
            found.pop()
        self._lines.extendleft(reversed(found[len(found) - min(room, len(found)) :]))
        self.version += 1


def _dated(happened: Event, at_s: float) -> str:
    """The line of an event with its time of day, and the day if it is not today."""
    text = line_of(happened)
    if not text:
        return ""
    at, today = time.localtime(at_s), time.localtime()
    is_today = (at.tm_year, at.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S  " if is_today else "%Y-%m-%d %H:%M:%S  ", at) + text
