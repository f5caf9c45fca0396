"""Runs Qt: the tray, its menu, and the panel once it is asked for.

Called by `composition` on the main thread, while the core loop runs on its own.
"""

import logging
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer, Slot
from PySide6.QtWidgets import QApplication

from app.core.errors import DisplayMissing
from app.core.events import Event
from app.core.handle import Handle
from app.core.hardware.display import display_available
from app.core.hardware.probe import probe_machine
from app.core.paths import Paths
from app.ui import qt_log, theme
from app.ui.actions import Actions
from app.ui.activity import ActivityLog
from app.ui.bridge import Bridge
from app.ui.fit_watch import FitWatch
from app.ui.icons import state_icon
from app.ui.leaving import Leaving
from app.ui.stall_watch import StallWatch
from app.ui.tray import Tray
from app.ui.view_state import IconKind

if TYPE_CHECKING:
    from app.core.hardware.machine import Machine
    from app.ui.panel import Panel

_log = logging.getLogger(__name__)

_CORE_POLL_MS = 500


def run_tray(
    handle: Handle,
    paths: Paths,
    *,
    is_core_alive: Callable[[], bool] = lambda: True,
    probe: "Callable[[], Machine] | None" = None,
) -> int:
    """Shows the tray until the user, a signal or the core's end says otherwise.

    Args:
        handle: the core's handle.
        paths: for the log folder, the events of before, and the models.
        is_core_alive: false once the core loop has ended, however that came about.
        probe: how the panel reads this machine; `probe_machine` unless given.

    Returns:
        The exit code: 0 after a clean end.

    Raises:
        DisplayMissing: when nothing can be shown here; serve headless instead.
    """
    reason = display_available()
    if reason is not None:
        raise DisplayMissing(reason)
    give_back = qt_log.capture()
    try:
        app = QApplication.instance()
        if not isinstance(app, QApplication):
            QApplication.setDesktopFileName("coolhead")
            app = QApplication(["coolhead"])
        app.setApplicationName("coolhead")
        app.setApplicationDisplayName("Coolhead")
        app.setQuitOnLastWindowClosed(False)
        app.setWindowIcon(state_icon(IconKind.READY))
        shell = _Shell(app, handle, paths, is_core_alive, probe)
        try:
            return app.exec()
        finally:
            shell.close()
            app.processEvents()
    finally:
        give_back()


class _Shell(QObject):
    """Owns everything that is shown. Thread: GUI."""

    def __init__(
        self,
        app: QApplication,
        handle: Handle,
        paths: Paths,
        is_core_alive: Callable[[], bool],
        probe: "Callable[[], Machine] | None",
    ) -> None:
        super().__init__()
        self._app = app
        self._paths = paths
        self._is_core_alive = is_core_alive
        self._probe = probe or probe_machine
        self._panel: Panel | None = None
        self.bridge = Bridge(handle, self)
        self._log = ActivityLog()
        self.bridge.events_arrived.connect(self._on_events)
        self._theme = theme.Theme(app, self.bridge, self)
        self._fit = FitWatch(self.bridge, self._probe, parent=self)
        self.actions = Actions(self.bridge, paths.logs, self._fit, self)
        self.tray = Tray(self.bridge, self.actions, self)
        self.leaving = Leaving(self.bridge, self)
        self._stalls = StallWatch(self)
        self.actions.panel_asked.connect(self._open_panel)
        self.actions.quit_asked.connect(self.leaving.begin)
        self.leaving.left.connect(self._leave)
        self._before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        self._core_poll = QTimer(self)
        self._core_poll.timeout.connect(self._look_at_core)
        self._core_poll.start(_CORE_POLL_MS)
        app.commitDataRequest.connect(self.leaving.begin)

    def close(self) -> None:
        self._core_poll.stop()
        for number, before in self._before.items():
            signal.signal(number, before)
        self._stalls.close()
        self.bridge.close()
        if self._panel is not None:
            self._panel.pulls.close()
            self._panel.close()
            self._panel.deleteLater()
        self.tray.close()

    @Slot(str)
    def _open_panel(self, page: str) -> None:
        if self._panel is None:
            from app.ui.panel import Panel  # made when first asked for: a tray alone stays small

            self._panel = Panel(
                self.bridge, self._log, self._paths, self._probe, unfit=lambda: self._fit.unfit
            )
        self._panel.open_page(page)

    @Slot(object)
    def _on_events(self, happened: tuple[Event, ...]) -> None:
        self._log.add(happened)

    @Slot(int)
    def _leave(self, code: int) -> None:
        self._app.exit(code)

    @Slot()
    def _look_at_core(self) -> None:
        if not self._is_core_alive():
            _log.info("the core has ended, and so does the tray")
            self._app.exit(0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        if sys.is_finalizing():
            return
        _log.info("signal %d: quitting", number)
        self.leaving.begin()
