"""What happened, kept in the state folder: one JSON line for each event, bounded.

The core writes it (a listener of the event bus); `coolhead events`, the panel and the admin endpoint
read it. Nothing in it comes from a prompt or an answer.
"""

import collections
import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.core.events import (
    AppStateChanged,
    Event,
    GuardChanged,
    Notice,
    PressureChanged,
    RoutesReloaded,
    SettingsChanged,
    StepTaken,
    WorkerExited,
    WorkerStateChanged,
)

_log = logging.getLogger(__name__)

KEPT = (
    AppStateChanged,
    GuardChanged,
    Notice,
    PressureChanged,
    RoutesReloaded,
    SettingsChanged,
    StepTaken,
    WorkerExited,
    WorkerStateChanged,
)
MAX_BYTES = 1024 * 1024
RECENT = 200


class EventLog:
    """Thread: the core loop. Appends; starts over in a second file when one is full.

    Args:
        path: the newer file; the older one is kept beside it with `.1` behind its name.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._recent: collections.deque[dict[str, Any]] = collections.deque(maxlen=RECENT)

    def __call__(self, event: Event) -> None:
        """Listens on the bus. A full or read-only disk loses the line, never the app."""
        if not isinstance(event, KEPT):
            return
        record = to_record(event)
        self._recent.append(record)
        try:
            if self.path.exists() and self.path.stat().st_size > MAX_BYTES:
                self.path.replace(self.path.with_name(self.path.name + ".1"))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False, default=str) + "\n")
        except OSError as error:
            _log.warning("an event could not be kept in %s: %s", self.path, error)

    def recent(self) -> list[dict[str, Any]]:
        """The last 200 of this run, oldest first."""
        return list(self._recent)


def to_record(event: Event) -> dict[str, Any]:
    """The event as JSON-able data, its name under `event`, its time (seconds since 1970) under `at`."""
    record: dict[str, Any] = {
        "at": round(event.at or time.time(), 3),
        "event": type(event).__name__,
    }
    for item in dataclasses.fields(event):
        if item.name != "at":
            value = getattr(event, item.name)
            record[item.name] = dict(value) if isinstance(value, Mapping) else value
    return record


def read_events(path: Path, limit: int = RECENT) -> list[dict[str, Any]]:
    """The last `limit` events of all runs, oldest first; a damaged line is passed over."""
    lines: list[str] = []
    for file in (path.with_name(path.name + ".1"), path):
        try:
            lines += file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
    records: list[dict[str, Any]] = []
    for line in lines[-limit:]:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
