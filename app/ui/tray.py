"""The tray icon, its menu, and what stands in for it where the desktop has no tray. Thread: GUI.

Qt docks the icon again by itself when a panel comes back, by XEmbed as by StatusNotifier; where the
first panel was late at login, the icon is made anew once there is one.
"""

import logging
import time

from PySide6.QtCore import QObject, QTimer, Slot
from PySide6.QtWidgets import QApplication, QMenu, QSystemTrayIcon

from app.core.events import Event, Notice, WindowRequested
from app.ui.actions import Actions
from app.ui.bridge import Bridge, Outcome
from app.ui.icons import state_icon
from app.ui.notices import NoticeThrottle
from app.ui.stand_in import StandInWindow
from app.ui.view_state import Entry, ViewState

_log = logging.getLogger(__name__)

_POLL_MS = 1000
_PATIENCE_S = 4.0
"""How long a tray may be missing before the window stands in: panels restart in less."""

_MESSAGE_MS = 12_000
_SEPARATED = (Entry.START, Entry.MEMORY, Entry.COPY, Entry.QUIT)


class Tray(QObject):
    """One icon for the life of the app."""

    def __init__(self, bridge: Bridge, actions: Actions, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._actions = actions
        self._throttle = NoticeThrottle()
        self.window = StandInWindow(actions)
        self.menu = QMenu()
        self.menu.setToolTipsVisible(True)
        self.menu.addAction(actions.line)
        for entry, action in actions.entries.items():
            if entry in _SEPARATED:
                self.menu.addSeparator()
            self.menu.addAction(action)
        self.menu.aboutToShow.connect(actions.refresh)
        self.icon = self._make_icon()
        actions.state_changed.connect(self._show)
        actions.failed.connect(self._on_failed)
        bridge.events_arrived.connect(self._on_events)
        self._show(actions.state)
        self._missing_since_s = time.monotonic()
        self._has_host = False
        self._had_host = False
        self._poll = QTimer(self)
        self._poll.timeout.connect(self._look_for_host)
        self._poll.start(_POLL_MS)
        self._look_for_host()
        self.icon.show()

    def _make_icon(self) -> QSystemTrayIcon:
        icon = QSystemTrayIcon(self)
        icon.setContextMenu(self.menu)
        icon.activated.connect(self._on_activated)
        return icon

    def _renew_icon(self) -> None:
        """An icon remembers which kind of tray there was when it was made, none included."""
        self.icon.hide()
        self.icon.deleteLater()
        self.icon = self._make_icon()
        self._show(self._actions.state)
        self.icon.show()

    def close(self) -> None:
        self._poll.stop()
        self.icon.hide()
        self.window.close_for_good()
        self.menu.deleteLater()

    def say(self, title: str, text: str, *, is_serious: bool) -> None:
        """Shows a message at the icon, or in the window that stands in for it."""
        self.window.say(title, text)
        if self._has_host:
            kinds = QSystemTrayIcon.MessageIcon
            kind = kinds.Warning if is_serious else kinds.Information
            self.icon.showMessage(title, text, kind, _MESSAGE_MS)

    @Slot(object)
    def _show(self, state: ViewState) -> None:
        self.icon.setIcon(state_icon(state.icon))
        QApplication.setWindowIcon(state_icon(state.icon))
        self.icon.setToolTip(state.tooltip)

    @Slot(QSystemTrayIcon.ActivationReason)
    def _on_activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is QSystemTrayIcon.ActivationReason.Trigger:
            self._actions.panel_asked.emit("Memory")

    @Slot(object)
    def _on_failed(self, outcome: Outcome) -> None:
        self.say(outcome.title, outcome.message, is_serious=True)

    @Slot(object)
    def _on_events(self, happened: tuple[Event, ...]) -> None:
        for one in happened:
            if isinstance(one, WindowRequested):
                self._actions.panel_asked.emit("Memory")
            elif isinstance(one, Notice) and self._throttle.may_show(one.cause, time.monotonic()):
                self.say(one.title, one.text, is_serious=one.is_serious)

    @Slot()
    def _look_for_host(self) -> None:
        has_host = QSystemTrayIcon.isSystemTrayAvailable()
        now_s = time.monotonic()
        if has_host and not self._has_host:
            _log.info("the desktop has a tray")
            if not self._had_host and self.icon.geometry().isEmpty():
                self._renew_icon()
            self._had_host = True
            self.window.hide()
        elif self._has_host and not has_host:
            _log.warning("the desktop's tray is gone; waiting for it")
            self._missing_since_s = now_s
        self._has_host = has_host
        is_late = now_s - self._missing_since_s >= _PATIENCE_S
        if not has_host and is_late and not self.window.was_offered:
            _log.warning("this desktop has no tray: a window stands in for the icon")
            self.window.offer()
        if has_host:
            self.window.was_offered = False
