"""A small window that does what the tray icon does, where the desktop has no tray. Thread: GUI.

Closing it only minimizes it, so that it can be found again; Quit is one of its buttons.
"""

from PySide6.QtCore import QSize, Qt, Slot
from PySide6.QtGui import QCloseEvent
from PySide6.QtWidgets import QGridLayout, QHBoxLayout, QLabel, QToolButton, QVBoxLayout, QWidget

from app.ui.actions import Actions
from app.ui.i18n import tr
from app.ui.icons import state_icon
from app.ui.view_state import Entry, ViewState

_COLUMNS = 2


class StandInWindow(QWidget):
    """State, the last notice, and a button for each entry of the menu."""

    def __init__(self, actions: Actions) -> None:
        super().__init__()
        self.setWindowTitle("Coolhead")
        self.was_offered = False
        self._icon = QLabel()
        self._line = QLabel()
        self._line.setWordWrap(True)
        self._line.setMinimumWidth(300)
        self._line.setTextFormat(Qt.TextFormat.PlainText)
        top = QHBoxLayout()
        top.addWidget(self._icon)
        top.addWidget(self._line, 1)
        why = QLabel(tr("This desktop has no tray for icons, so this window stands in for it."))
        why.setWordWrap(True)
        self._notice = QLabel()
        self._notice.setWordWrap(True)
        self._notice.setTextFormat(Qt.TextFormat.PlainText)
        self._notice.hide()
        grid = QGridLayout()
        for index, (entry, action) in enumerate(actions.entries.items()):
            if entry is Entry.LEAVE_SAFE_MODE:
                continue
            button = QToolButton()
            button.setDefaultAction(action)
            button.setSizePolicy(
                button.sizePolicy().Policy.Expanding, button.sizePolicy().Policy.Fixed
            )
            place = index if index < list(Entry).index(Entry.LEAVE_SAFE_MODE) else index - 1
            grid.addWidget(button, place // _COLUMNS, place % _COLUMNS)
        layout = QVBoxLayout(self)
        layout.addLayout(top)
        layout.addWidget(self._notice)
        layout.addLayout(grid)
        layout.addWidget(why)
        actions.state_changed.connect(self._show)
        self._show(actions.state)
        self._may_close = False

    def offer(self) -> None:
        """Shows itself once for each time that the tray is missing."""
        self.was_offered = True
        self.show()
        self.raise_()

    def say(self, title: str, text: str) -> None:
        self._notice.setText(f"{title}\n{text}")
        self._notice.show()

    def close_for_good(self) -> None:
        self._may_close = True
        self.close()
        self.deleteLater()

    def closeEvent(self, asked: QCloseEvent) -> None:  # noqa: N802 - Qt's name
        if self._may_close:
            asked.accept()
        else:
            asked.ignore()
            self.showMinimized()  # without a tray a hidden window could not be found again

    @Slot(object)
    def _show(self, state: ViewState) -> None:
        self.setWindowIcon(state_icon(state.icon))
        self._icon.setPixmap(state_icon(state.icon).pixmap(QSize(48, 48)))
        self._line.setText("\n".join((state.line, *state.details)))
