"""Whether the model that requests would get fits, while none is loaded: what the tray must not hide.

A model that does not fit is only refused when it is asked for; until then all looks well. Looks when
settings or models change, and every few seconds, as other programs come and go. Thread: GUI; the
machine and the model's header are read elsewhere (`facts.py`).
"""

from PySide6.QtCore import QObject, QTimer, Signal, Slot

from app.core.handle import ModelSummary, Snapshot
from app.core.lifecycle import AppState, WorkerState
from app.core.models.choice import Proposal
from app.ui.bridge import Bridge
from app.ui.facts import FactSource, Probe, ReadModel, read_model
from app.ui.pricing import Facts, chosen_model, price
from app.ui.view_state import Unfit
from app.ui.ways_out import proposal

_LOOK_MS = 5000
_SERVING = frozenset({AppState.READY, AppState.PAUSED})
_GONE = frozenset({WorkerState.UNLOADED, WorkerState.FAILED})


class FitWatch(QObject):
    """`changed` when `unfit` has become another."""

    changed = Signal()

    def __init__(
        self,
        bridge: Bridge,
        probe: Probe,
        read: ReadModel = read_model,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._unfit: Unfit | None = None
        self._looked_at: object = None
        self._facts = FactSource(bridge, probe, read, self)
        self._facts.changed.connect(self._on_facts)
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._look)
        bridge.snapshot_changed.connect(self._on_snapshot)
        self._on_snapshot(bridge.snapshot)

    @property
    def unfit(self) -> Unfit | None:
        """None while the model is loaded, would fit, or is not asked about."""
        return self._unfit

    @Slot(object)
    def _on_snapshot(self, snapshot: Snapshot) -> None:
        model = _waiting_model(snapshot)
        if model is None:
            self._timer.stop()
            self._looked_at = None
            self._tell(None)
            return
        what = (model, snapshot.settings, len(snapshot.workers))
        if what != self._looked_at:
            self._looked_at = what
            self._timer.start(_LOOK_MS)
            self._look()

    @Slot()
    def _look(self) -> None:
        model = _waiting_model(self._bridge.snapshot)
        if model is not None:
            self._facts.look(model)

    @Slot(object)
    def _on_facts(self, facts: Facts) -> None:
        snapshot = self._bridge.snapshot
        model = _waiting_model(snapshot)
        if model is None:
            return
        if facts.spec is None or facts.spec.model_id != model.model_id:
            self._tell(None)  # it cannot be read, or another one is looked at next
            return
        settings = snapshot.settings
        priced = price(facts, settings, snapshot)
        if priced.fits:
            self._tell(None)
            return
        found = proposal(facts, settings, snapshot)
        ways = f" {found.sentence}" if found else ""
        self._tell(Unfit(model.model_id, _way_out(found), f"{priced.sentence}{ways}"))

    def _tell(self, unfit: Unfit | None) -> None:
        if unfit != self._unfit:
            self._unfit = unfit
            self.changed.emit()


def _waiting_model(snapshot: Snapshot) -> ModelSummary | None:
    """The model that the next request would load; None while that is no question."""
    is_loaded = any(worker.state not in _GONE for worker in snapshot.workers)
    if snapshot.state not in _SERVING or is_loaded or snapshot.settings.memory.force_load:
        return None
    return chosen_model(snapshot.settings, snapshot)


def _way_out(found: Proposal | None) -> str:
    if found is None or not found.changes:
        return found.quantization if found else ""
    slots = "1 slot" if found.load.slots == 1 else f"{found.load.slots} slots"
    return f"{slots} of {found.load.context_tokens:,} tokens"
