"""What has happened, as lines for people; kept from the start, shown on the activity page. Pure."""

import time
from collections import deque
from collections.abc import Iterable

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


class ActivityLog:
    """The last lines, newest last; `version` rises with each. Thread: GUI."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.version = 0

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def add(self, happened: Iterable[Event]) -> None:
        for one in happened:
            text = line_of(one)
            if text:
                at_s = one.at or time.time()
                self._lines.append(time.strftime("%H:%M:%S  ", time.localtime(at_s)) + text)
                self.version += 1
