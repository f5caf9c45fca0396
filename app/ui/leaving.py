"""The way out: asks the core to quit, shows that it is at work, and never waits longer than 5 s.

Thread: GUI. What is not ended by then is ended by the guard when the process goes.
"""

import logging

from PySide6.QtCore import QObject, QTimer, Signal, Slot
from PySide6.QtWidgets import QProgressDialog

from app.core.handle import Quit, Snapshot
from app.core.lifecycle import AppState, WorkerState
from app.ui.bridge import Bridge, Outcome
from app.ui.i18n import tr

_log = logging.getLogger(__name__)

DEADLINE_MS = 4_500
"""Leaves half a second of the promised five for Qt and the interpreter to go."""

_SHOW_AFTER_MS = 400


class Leaving(QObject):
    """Emits `left(exit code)` once: 0 when the core said that all is ended, else 1."""

    left = Signal(int)

    def __init__(self, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._dialog: QProgressDialog | None = None
        self._is_leaving = False
        self._deadline = QTimer(self)
        self._deadline.setSingleShot(True)
        self._deadline.timeout.connect(self._on_deadline)
        self._patience = QTimer(self)
        self._patience.setSingleShot(True)
        self._patience.timeout.connect(self._show_progress)
        bridge.snapshot_changed.connect(self._show)

    @Slot()
    def begin(self) -> None:
        """Asked twice, it still quits once."""
        if self._is_leaving:
            return
        self._is_leaving = True
        _log.info("quitting")
        self._deadline.start(DEADLINE_MS)
        self._patience.start(_SHOW_AFTER_MS)
        self._bridge.send(Quit(), self._on_done)

    def _on_done(self, outcome: Outcome) -> None:
        # The core's loop may end before it has said so; how things stand is in the last snapshot.
        is_clean = outcome.error is None or self._bridge.snapshot.state is AppState.STOPPED
        if not is_clean:
            _log.error("the core did not quit cleanly: %r", outcome.error)
        self._finish(0 if is_clean else 1)

    @Slot()
    def _on_deadline(self) -> None:
        _log.error("the core did not quit within %.1f s; leaving", DEADLINE_MS / 1000)
        self._finish(1)

    def _finish(self, code: int) -> None:
        if not self._is_leaving:
            return
        self._is_leaving = False
        self._deadline.stop()
        self._patience.stop()
        if self._dialog is not None:
            self._dialog.close()
            self._dialog.deleteLater()
            self._dialog = None
        self.left.emit(code)

    @Slot()
    def _show_progress(self) -> None:
        dialog = QProgressDialog()
        dialog.setWindowTitle("Coolhead")
        dialog.setMinimumWidth(360)
        dialog.setCancelButton(None)
        dialog.setRange(0, 0)
        self._dialog = dialog
        self._show(self._bridge.snapshot)
        dialog.show()

    @Slot(object)
    def _show(self, snapshot: Snapshot) -> None:
        if self._dialog is None:
            return
        left = sum(worker.state is not WorkerState.UNLOADED for worker in snapshot.workers)
        self._dialog.setLabelText(tr("Ending models…") + (f" ({left})" if left else ""))
