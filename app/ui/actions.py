"""What the menu and the stand-in window offer, as one set of QActions that both show. Thread: GUI.

An action sends a command and changes nothing by itself; how it looks follows the snapshot.
"""

import logging
from pathlib import Path

from PySide6.QtCore import QObject, QUrl, Signal, Slot
from PySide6.QtGui import QAction, QDesktopServices, QGuiApplication

from app.core.handle import Command, LeaveSafeMode, Pause, Snapshot, Start, Stop
from app.ui.bridge import Bridge, Outcome
from app.ui.fit_watch import FitWatch
from app.ui.i18n import tr
from app.ui.icons import state_icon
from app.ui.view_state import Entry, ViewState, view_state

_log = logging.getLogger(__name__)

_TITLES = {
    Entry.START: "Start",
    Entry.STOP: "Stop",
    Entry.PAUSE: "Pause new requests",
    Entry.LEAVE_SAFE_MODE: "Leave safe mode",
    Entry.MEMORY: "Memory…",
    Entry.SETTINGS: "Settings…",
    Entry.COPY: "Copy endpoint URL",
    Entry.LOGS: "Open log folder",
    Entry.QUIT: "Quit",
}


class Actions(QObject):
    """Signals: `state_changed(ViewState)`, `panel_asked(page)`, `quit_asked`, `failed(Outcome)`."""

    state_changed = Signal(object)
    panel_asked = Signal(str)
    quit_asked = Signal()
    failed = Signal(object)

    def __init__(
        self,
        bridge: Bridge,
        log_folder: Path,
        fit: FitWatch | None = None,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._fit = fit
        self._log_folder = log_folder
        self.line = QAction("Coolhead", self)
        self.line.triggered.connect(self._show_activity)
        self.entries = {entry: QAction(tr(title), self) for entry, title in _TITLES.items()}
        self.entries[Entry.PAUSE].setCheckable(True)
        self.entries[Entry.START].triggered.connect(self._start)
        self.entries[Entry.STOP].triggered.connect(self._stop)
        self.entries[Entry.PAUSE].triggered.connect(self._pause)
        self.entries[Entry.LEAVE_SAFE_MODE].triggered.connect(self._leave_safe_mode)
        self.entries[Entry.MEMORY].triggered.connect(self._show_memory)
        self.entries[Entry.SETTINGS].triggered.connect(self._show_settings)
        self.entries[Entry.COPY].triggered.connect(self._copy_endpoint)
        self.entries[Entry.LOGS].triggered.connect(self._open_logs)
        self.entries[Entry.QUIT].triggered.connect(self.quit_asked)
        bridge.snapshot_changed.connect(self._show)
        if fit is not None:
            fit.changed.connect(self.refresh)
        self.state: ViewState = self._look(bridge.snapshot)
        self._draw()

    @Slot()
    def refresh(self) -> None:
        """Draws the newest snapshot; called whenever the menu opens."""
        self.state = self._look(self._bridge.snapshot)
        self._draw()

    @Slot(object)
    def _show(self, snapshot: Snapshot) -> None:
        newest = self._look(snapshot)
        if newest != self.state:  # most snapshots differ in figures that are not shown here
            self.state = newest
            self._draw()

    def _look(self, snapshot: Snapshot) -> ViewState:
        return view_state(snapshot, self._fit.unfit if self._fit is not None else None)

    def _draw(self) -> None:
        self.line.setText(self.state.menu_line.replace("&", "&&"))
        self.line.setToolTip(self.state.tooltip)
        self.line.setIcon(state_icon(self.state.icon))
        for entry, shown in self.state.entries.items():
            action = self.entries[entry]
            action.setEnabled(shown.is_enabled)
            action.setVisible(shown.is_visible)
            action.setChecked(shown.is_checked)
        self.state_changed.emit(self.state)

    def _send(self, command: Command) -> None:
        _log.info("asked for by the user: %s", type(command).__name__)
        self._bridge.send(command, self._on_done)

    def _on_done(self, outcome: Outcome) -> None:
        self.refresh()
        if outcome.error is not None:
            _log.error("a command failed: %s", outcome.message or repr(outcome.error))
            self.failed.emit(outcome)

    @Slot()
    def _start(self) -> None:
        self._send(Start())

    @Slot()
    def _stop(self) -> None:
        self._send(Stop())

    @Slot(bool)
    def _pause(self, is_checked: bool) -> None:
        self._send(Pause(is_checked))
        self.refresh()  # the check mark waits for the core

    @Slot()
    def _leave_safe_mode(self) -> None:
        self._send(LeaveSafeMode())

    @Slot()
    def _show_activity(self) -> None:
        self.panel_asked.emit("Activity")

    @Slot()
    def _show_memory(self) -> None:
        self.panel_asked.emit("Memory")

    @Slot()
    def _show_settings(self) -> None:
        self.panel_asked.emit("Endpoint")

    @Slot()
    def _copy_endpoint(self) -> None:
        QGuiApplication.clipboard().setText(self._bridge.snapshot.endpoint)

    @Slot()
    def _open_logs(self) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(self._log_folder))):
            _log.warning("no program opens %s", self._log_folder)
