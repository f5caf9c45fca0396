"""What is going on: state, workers, speed and memory over the last minutes, and what happened.

Thread: GUI. Drawn from the snapshot, four times a second at most and only while it can be seen.
"""

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import (
    QHBoxLayout,
    QHeaderView,
    QLabel,
    QPlainTextEdit,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from app.core.handle import Snapshot, WorkerSnapshot
from app.core.models.sizes import size_text
from app.core.settings_meta import GIB
from app.ui.activity import ActivityLog
from app.ui.i18n import tr
from app.ui.icons import state_icon
from app.ui.sparkline import Sparkline
from app.ui.view_state import Unfit, view_state

_COLUMNS = ("Model", "State", "In-flight", "Waiting", "Context", "Taken / planned", "Cap")


class ActivityPage(QWidget):
    def __init__(self, log: ActivityLog, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._log = log
        self._log_version = -1
        self._icon = QLabel()
        self._line = QLabel()
        self._line.setWordWrap(True)
        self._line.setTextFormat(Qt.TextFormat.PlainText)
        self._line.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.speed = Sparkline(tr("Tokens per second"), tr("tokens/s"))
        self.available = Sparkline(tr("Available RAM"), "GiB")
        self.workers = QTableWidget(0, len(_COLUMNS))
        self.workers.setHorizontalHeaderLabels([tr(name) for name in _COLUMNS])
        self.workers.verticalHeader().hide()
        self.workers.setEditTriggers(QTableWidget.EditTrigger.NoEditTriggers)
        self.workers.setSelectionMode(QTableWidget.SelectionMode.NoSelection)
        self.workers.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        modes = QHeaderView.ResizeMode
        self.workers.horizontalHeader().setSectionResizeMode(modes.ResizeToContents)
        self.workers.horizontalHeader().setSectionResizeMode(0, modes.Stretch)
        self.workers.setMaximumHeight(150)
        self.events = QPlainTextEdit()
        self.events.setReadOnly(True)
        self.events.setPlaceholderText(tr("Nothing has happened yet."))
        top = QHBoxLayout()
        top.addWidget(self._icon)
        top.addWidget(self._line, 1)
        lines = QHBoxLayout()
        lines.addWidget(self.speed)
        lines.addSpacing(12)
        lines.addWidget(self.available)
        layout = QVBoxLayout(self)
        layout.addLayout(top)
        layout.addLayout(lines)
        layout.addWidget(self.workers)
        layout.addWidget(self.events, 1)

    def show_snapshot(self, snapshot: Snapshot, unfit: Unfit | None = None) -> None:
        state = view_state(snapshot, unfit)
        self._icon.setPixmap(state_icon(state.icon).pixmap(QSize(32, 32)))
        endpoint = (snapshot.endpoint,) if snapshot.endpoint else ()
        self._line.setText("\n".join((state.line, *endpoint, *state.details, *snapshot.problems)))
        self.speed.add(snapshot.tokens_per_s)
        self.available.add(snapshot.ram_available_bytes / GIB)
        self.workers.setRowCount(len(snapshot.workers))
        for row, worker in enumerate(snapshot.workers):
            for column, text in enumerate(_cells(worker)):
                item = self.workers.item(row, column)
                if item is None:
                    self.workers.setItem(row, column, QTableWidgetItem(text))
                elif item.text() != text:
                    item.setText(text)
        self._show_events()

    def _show_events(self) -> None:
        if self._log.version == self._log_version:
            return
        self._log_version = self._log.version
        self.events.setPlainText("\n".join(reversed(self._log.lines)))


def _cells(worker: WorkerSnapshot) -> tuple[str, ...]:
    taken, planned = sum(worker.taken_bytes.values()), sum(worker.planned_bytes.values())
    return (
        worker.model_id,
        worker.state.value,
        str(worker.in_flight),
        str(worker.queued),
        f"{worker.context_tokens:,} × {worker.slots}" if worker.slots else "",
        f"{size_text(taken)} / {size_text(planned)}",
        _caps(worker),
    )


def _caps(worker: WorkerSnapshot) -> str:
    """What the guard ends it at, and behind it what the kernel enforces."""
    found = [f"{size_text(worker.cap_bytes)} {tr('guard')}"] if worker.cap_bytes else []
    if worker.kernel_limit_bytes:
        kind = worker.cap_kind.value.replace("_", " ")
        found.append(f"{size_text(worker.kernel_limit_bytes)} {kind}")
    return ", ".join(found)
