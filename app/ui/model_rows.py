"""The rows of the models page: one for each installed model, one for each that can be fetched.

They show what they are given and announce what the user wants. Thread: GUI.
"""

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from app.core.handle import ModelSummary, WorkerSnapshot
from app.core.lifecycle import WorkerState
from app.core.models.catalogue import CatalogueEntry
from app.core.models.presets_file import presets
from app.core.models.sizes import size_text
from app.ui.i18n import tr
from app.ui.pulls import Pull

_STEPS = 1000


class _Elided(QLabel):
    """A path, cut in its middle where it is too long; whole in the tooltip."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.setToolTip(text)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)

    def paintEvent(self, asked: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        del asked
        painter = QPainter(self)
        mode = Qt.TextElideMode.ElideMiddle
        shown = self.fontMetrics().elidedText(self.text(), mode, self.width())
        painter.drawText(self.rect(), Qt.AlignmentFlag.AlignVCenter, shown)
        painter.end()


class _Row(QFrame):
    """A title, lines below it, and buttons at the right."""

    def __init__(self, title: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setFrameShape(QFrame.Shape.StyledPanel)
        self.title = QLabel(title)
        self.title.setTextFormat(Qt.TextFormat.PlainText)
        font = self.title.font()
        font.setBold(True)
        self.title.setFont(font)
        self.facts = QLabel()
        self.facts.setTextFormat(Qt.TextFormat.PlainText)
        self.facts.setWordWrap(True)
        self.words = QVBoxLayout()
        self.words.setSpacing(1)
        self.words.addWidget(self.title)
        self.words.addWidget(self.facts)
        self.buttons = QHBoxLayout()
        row = QHBoxLayout(self)
        row.setContentsMargins(8, 5, 8, 5)
        row.addLayout(self.words, 1)
        row.addLayout(self.buttons)


class InstalledRow(_Row):
    """Signals: `load_asked`, `unload_asked`, `delete_asked`, `folder_asked`, each with the model."""

    load_asked = Signal(object)
    unload_asked = Signal(object)
    delete_asked = Signal(object)
    folder_asked = Signal(object)

    def __init__(self, model: ModelSummary, *, is_ours: bool) -> None:
        super().__init__(model.model_id)
        self.model = model
        self.words.addWidget(_Elided(model.path))
        self.load = QPushButton(tr("Load"))
        self.load.clicked.connect(lambda: self.load_asked.emit(self.model))
        self.unload = QPushButton(tr("Unload"))
        self.unload.clicked.connect(lambda: self.unload_asked.emit(self.model))
        self.folder = QPushButton(tr("Open folder"))
        self.folder.clicked.connect(lambda: self.folder_asked.emit(self.model))
        self.delete = QPushButton(tr("Delete…"))
        self.delete.clicked.connect(lambda: self.delete_asked.emit(self.model))
        self._is_ours = is_ours
        if not is_ours:
            self.delete.setToolTip(tr("It lies in a folder of yours: delete it there."))
        for button in (self.load, self.unload, self.folder, self.delete):
            self.buttons.addWidget(button)

    def show_state(
        self, model: ModelSummary, worker: WorkerSnapshot | None, *, can_load: bool, is_busy: bool
    ) -> None:
        """Shows how things stand.

        Args:
            model: as it is listed now.
            worker: its own, if there ever was one.
            can_load: whether the endpoint is open.
            is_busy: what was asked for is under way.
        """
        self.model = model
        state = worker.state if worker is not None else WorkerState.UNLOADED
        is_gone = state in {WorkerState.UNLOADED, WorkerState.FAILED}
        self.facts.setText(f"{size_text(model.size_bytes)}, {_state_text(worker)}")
        self.load.setVisible(is_gone)
        self.load.setEnabled(can_load and not is_busy)
        self.load.setToolTip("" if can_load else tr("Start Coolhead first."))
        self.unload.setVisible(not is_gone)
        self.unload.setEnabled(state in {WorkerState.STARTING, WorkerState.READY})
        self.delete.setEnabled(self._is_ours and not is_busy)


def _state_text(worker: WorkerSnapshot | None) -> str:
    if worker is None or worker.state is WorkerState.UNLOADED:
        return tr("not loaded")
    if worker.state is WorkerState.FAILED:
        return f"{tr('failed')}: {worker.reason}" if worker.reason else tr("failed")
    if worker.state is WorkerState.STARTING:
        return f"{tr('loading')} {round(worker.load_fraction * 100)} %"
    if worker.state is not WorkerState.READY:
        return tr("unloading")
    taken = size_text(sum(worker.taken_bytes.values()))
    slots = "1 slot" if worker.slots == 1 else f"{worker.slots} slots"
    return f"{tr('loaded')}: {slots} × {worker.context_tokens:,} tokens, {taken} {tr('taken')}"


class CatalogueRow(_Row):
    """Signals: `pull_asked(CatalogueEntry)`, `cancel_asked(name)`."""

    pull_asked = Signal(object)
    cancel_asked = Signal(str)

    def __init__(self, entry: CatalogueEntry) -> None:
        super().__init__(entry.title or entry.name)
        self.entry = entry
        self.facts.setText(f"{entry.text}\n{_entry_facts(entry)}")
        self.bar = QProgressBar()
        self.bar.setFixedWidth(190)
        self.pull = QPushButton(tr("Pull"))
        self.pull.setAccessibleName(tr("Pull") + f" {entry.title}")
        self.pull.clicked.connect(lambda: self.pull_asked.emit(self.entry))
        self.cancel = QPushButton(tr("Cancel"))
        self.cancel.clicked.connect(lambda: self.cancel_asked.emit(self.entry.name))
        self.there = QLabel(tr("installed"))
        for widget in (self.bar, self.there, self.pull, self.cancel):
            self.buttons.addWidget(widget)

    def show_state(self, pull: Pull | None, *, is_installed: bool) -> None:
        """Shows how things stand.

        Args:
            pull: while it is fetched.
            is_installed: whether the library has it.
        """
        is_fetching = pull is not None
        self.bar.setVisible(is_fetching)
        self.cancel.setVisible(is_fetching)
        self.there.setVisible(is_installed and not is_fetching)
        self.pull.setVisible(not is_installed and not is_fetching)
        if pull is None:
            return
        self.cancel.setEnabled(not pull.cancelled.is_set())
        done, total = pull.done_bytes, pull.total_bytes
        # Without a total Qt draws a bar that runs to and fro.
        self.bar.setRange(0, _STEPS if total else 0)
        self.bar.setValue(min(_STEPS, done * _STEPS // total) if total else 0)
        self.bar.setFormat(f"{size_text(done)} / {size_text(total)}" if total else size_text(done))


def _entry_facts(entry: CatalogueEntry) -> str:
    size, about = entry.size_bytes, ""
    if not size and entry.quantization and entry.parameters:
        size, about = int(entry.parameters * presets().bits(entry.quantization) / 8), tr("about")
    sized = f"{about} {size_text(size)}".strip() if size else ""
    source = f"{tr('from')} {entry.repo}" if entry.repo and not entry.wheel else ""
    facts = (sized, entry.quantization, entry.licence, source)
    return ", ".join(filter(None, facts))
