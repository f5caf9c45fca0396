"""Models that are being fetched: started, watched and broken off from the models page. Thread: GUI.

Each download runs on a thread of the bridge's and tells its bytes by plain stores, which a timer here
looks at. Whoever ends the app closes this first, so that no program of a download outlives it.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.core.models.catalogue import CatalogueEntry
from app.core.models.download import Progress, fetch
from app.core.paths import Paths
from app.ui.bridge import Bridge, Outcome

Fetch = Callable[[CatalogueEntry, Paths, Progress, threading.Event], Path]
"""Blocking, as `models.download.fetch`."""

_LOOK_MS = 250
_END_S = 3.0


@dataclass(slots=True)
class Pull:
    """One download. `done_bytes` and `total_bytes` (0: not told yet) are written by its thread."""

    entry: CatalogueEntry
    done_bytes: int = 0
    total_bytes: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def progressed(self, done_bytes: int, total_bytes: int) -> None:
        """Thread: the download's."""
        self.done_bytes, self.total_bytes = done_bytes, total_bytes


class Pulls(QObject):
    """Signals: `moved` while bytes come in, `ended(CatalogueEntry, Outcome)` once for each."""

    moved = Signal()
    ended = Signal(object, object)

    def __init__(
        self, bridge: Bridge, paths: Paths, get: Fetch = fetch, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._paths = paths
        self._get = get
        self._running: dict[str, Pull] = {}
        self._timer = QTimer(self)
        self._timer.timeout.connect(self.moved)

    @property
    def running(self) -> Mapping[str, Pull]:
        """By the entry's name."""
        return self._running

    def start(self, entry: CatalogueEntry) -> None:
        """Begins to fetch; one that is running is left alone."""
        if entry.name in self._running:
            return
        pull = Pull(entry)
        self._running[entry.name] = pull

        def work() -> Path:
            try:
                return self._get(entry, self._paths, pull.progressed, pull.cancelled)
            finally:
                pull.ended.set()

        self._bridge.ask(work, lambda outcome: self._on_ended(pull, outcome))
        self._timer.start(_LOOK_MS)
        self.moved.emit()

    @Slot(str)
    def cancel(self, name: str) -> None:
        """Breaks a download off; `ended` follows."""
        if name in self._running:
            self._running[name].cancelled.set()

    def close(self) -> None:
        """Breaks off what is running, and waits until its programs are gone."""
        self._timer.stop()
        for pull in self._running.values():
            pull.cancelled.set()
        for pull in self._running.values():
            pull.ended.wait(_END_S)

    def _on_ended(self, pull: Pull, outcome: Outcome) -> None:
        self._running.pop(pull.entry.name, None)
        if not self._running:
            self._timer.stop()
        self.ended.emit(pull.entry, outcome)
