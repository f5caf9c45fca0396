"""Reads what the memory page draws on, off the GUI thread: this machine, and the chosen model's header.

Owned by the panel; asked when the page is shown, when another model is chosen, and every few seconds
while it can be seen.
"""

from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QObject, Signal

from app.core.errors import CoolheadError
from app.core.handle import ModelSummary
from app.core.hardware.machine import Machine
from app.core.hardware.probe import probe_machine
from app.core.models.mlx_folder import read_mlx_spec
from app.core.models.spec import ModelSpec, read_spec
from app.ui.bridge import Bridge, Outcome
from app.ui.pricing import Facts

Probe = Callable[[], Machine]
ReadModel = Callable[[ModelSummary], ModelSpec]


def read_model(model: ModelSummary) -> ModelSpec:
    """Blocking: the description of an installed model, from its file.

    Raises:
        ModelFileMissing: it is gone.
        ModelFileInvalid: it is damaged.
    """
    path = Path(model.path)
    if path.is_dir():
        return read_mlx_spec(path, model.model_id)
    return read_spec(path, model.model_id)


class FactSource(QObject):
    """One look at a time; a wish that comes during a look is looked at next. Thread: GUI."""

    changed = Signal(object)
    failed = Signal(str)

    def __init__(
        self,
        bridge: Bridge,
        probe: Probe = probe_machine,
        read: ReadModel = read_model,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._probe = probe
        self._read = read
        self._wanted: ModelSummary | None = None
        self._is_looking = False
        self._is_wanted_again = False
        self._spec: ModelSpec | None = None
        self._model: ModelSummary | None = None

    def look(self, model: ModelSummary | None) -> None:
        """`changed` follows with the `Facts` of this machine and `model`."""
        self._wanted = model
        if self._is_looking:
            self._is_wanted_again = True
            return
        self._is_looking = True
        known = self._spec if model == self._model else None
        self._bridge.ask(lambda: self._facts(model, known), self._on_done)

    def _facts(self, model: ModelSummary | None, known: ModelSpec | None) -> Facts:
        """Thread: one of the bridge's own."""
        machine = self._probe()
        if model is None or known is not None:
            return Facts(machine, known)
        try:
            return Facts(machine, self._read(model))
        except CoolheadError as error:
            return Facts(machine, None, error.message)

    def _on_done(self, outcome: Outcome) -> None:
        self._is_looking = False
        if isinstance(outcome.result, Facts):
            self._spec = outcome.result.spec
            self._model = self._wanted if not self._is_wanted_again else None
            if not self._is_wanted_again:
                self.changed.emit(outcome.result)
        elif outcome.error is not None:
            self.failed.emit(outcome.message)
        if self._is_wanted_again:
            self._is_wanted_again = False
            self.look(self._wanted)
