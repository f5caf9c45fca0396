"""The window behind the tray: a list of pages, the page, and what Apply would do. Thread: GUI.

Made when it is first asked for; closing it only hides it. All pages write into one draft.
"""

from PySide6.QtCore import QEvent, QSize, QTimer, Slot
from PySide6.QtGui import QCloseEvent, QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QListWidget,
    QPushButton,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.core.errors import SettingsInvalid
from app.core.handle import ApplySettings, Snapshot
from app.core.hardware.probe import probe_machine
from app.core.settings_meta import Needs
from app.ui.activity import ActivityLog
from app.ui.activity_page import ActivityPage
from app.ui.bridge import Bridge, Outcome
from app.ui.draft import Draft
from app.ui.facts import FactSource, Probe, ReadModel, read_model
from app.ui.i18n import tr
from app.ui.memory_page import MemoryPage
from app.ui.pricing import Facts, chosen_model
from app.ui.settings_form import SettingsForm, pages
from app.ui.theme import colours, tint

_LOOK_MS = 4000
_ROW_HEIGHT = 28
ACTIVITY = "Activity"
_NEEDS = {
    Needs.NOTHING: "Takes effect at once.",
    Needs.RELOAD: "Reloads the model; answers in progress are finished first.",
    Needs.RESTART: "Takes effect at the next start of Coolhead.",
}


class Panel(QWidget):
    """Memory, the other settings pages, and the activity page."""

    def __init__(
        self,
        bridge: Bridge,
        log: ActivityLog,
        probe: Probe | None = None,
        read: ReadModel = read_model,
    ) -> None:
        super().__init__()
        self.setWindowTitle("Coolhead")
        self.resize(900, 680)
        self._bridge = bridge
        self._snapshot = bridge.snapshot
        self.draft = Draft(self._snapshot.settings)
        self._is_applying = False
        self._trouble = ""
        self._facts = FactSource(bridge, probe or probe_machine, read, self)
        self._facts.changed.connect(self._on_facts)
        self.memory = MemoryPage()
        self._facts.failed.connect(self.memory.show_trouble)
        self.memory.moved.connect(self._on_moved)
        self.memory.proposed.connect(self._on_proposed)
        self.activity = ActivityPage(log)
        self._forms: dict[str, SettingsForm] = {}
        self._names = (*pages(), ACTIVITY)
        self.list = QListWidget()
        self.list.addItems([tr(name) for name in self._names])
        self.list.setFixedWidth(128)
        for row in range(self.list.count()):
            self.list.item(row).setSizeHint(QSize(0, _ROW_HEIGHT))
        self.list.setAccessibleName(tr("Pages"))
        self._stack = QStackedWidget()
        for name in self._names:
            self._stack.addWidget(self._page(name))
        self.list.currentRowChanged.connect(self._on_page)
        self._apply_bar = self._make_apply_bar()
        right = QVBoxLayout()
        right.addWidget(self._stack, 1)
        right.addWidget(self._apply_bar)
        layout = QHBoxLayout(self)
        layout.addWidget(self.list)
        layout.addLayout(right, 1)
        self._look_timer = QTimer(self)
        self._look_timer.timeout.connect(self._look)
        bridge.snapshot_changed.connect(self._on_snapshot)
        self.list.setCurrentRow(0)
        self._show_draft()

    def open_page(self, name: str) -> None:
        """Brings the window to the front, with the page of that name."""
        if name in self._names:
            self.list.setCurrentRow(self._names.index(name))
        self.showNormal() if self.isMinimized() else self.show()
        self.raise_()
        self.activateWindow()

    def showEvent(self, happened: QShowEvent) -> None:  # noqa: N802 - Qt's name
        super().showEvent(happened)
        if not happened.spontaneous():
            self._bridge.watch(True)
            self._look_timer.start(_LOOK_MS)
            self._on_snapshot(self._bridge.snapshot)
            self._look()

    def hideEvent(self, happened: QHideEvent) -> None:  # noqa: N802 - Qt's name
        super().hideEvent(happened)
        if not happened.spontaneous():
            self._bridge.watch(False)
            self._look_timer.stop()

    def closeEvent(self, asked: QCloseEvent) -> None:  # noqa: N802 - Qt's name
        asked.accept()  # hidden, not destroyed: it is raised again from the tray

    def changeEvent(self, happened: QEvent) -> None:  # noqa: N802 - Qt's name
        super().changeEvent(happened)
        if happened.type() is QEvent.Type.PaletteChange:
            self._show_draft()

    def _page(self, name: str) -> QWidget:
        if name == "Memory":
            return self.memory
        if name == ACTIVITY:
            return self.activity
        form = SettingsForm(name, has_sliders=False)
        form.moved.connect(self._on_moved)
        self._forms[name] = form
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidget(form)
        return scroll

    def _make_apply_bar(self) -> QWidget:
        bar = QWidget()
        row = QHBoxLayout(bar)
        row.setContentsMargins(9, 0, 9, 0)
        self._needs = QLabel()
        self._needs.setWordWrap(True)
        self._revert = QPushButton(tr("Revert"))
        self._revert.clicked.connect(self._on_revert)
        self._apply = QPushButton(tr("Apply"))
        self._apply.setDefault(True)
        self._apply.clicked.connect(self._on_apply)
        row.addWidget(self._needs, 1)
        row.addWidget(self._revert)
        row.addWidget(self._apply)
        return bar

    def _show_draft(self) -> None:
        self.memory.show_draft(self.draft, self._snapshot)
        self._show_form()
        self._show_needs()

    def _show_form(self) -> None:
        """Only the page that can be seen; the others are drawn when they are turned to."""
        form = self._forms.get(self._names[max(0, self.list.currentRow())])
        if form is not None:
            form.show_draft(self.draft, {})

    def _show_needs(self) -> None:
        has_changes = bool(self.draft.changes)
        self._apply.setEnabled(has_changes and not self._is_applying)
        self._revert.setEnabled(has_changes and not self._is_applying)
        priced = self.memory.priced
        if self._is_applying:
            text = tr("Applying… answers in progress are finished first.")
        elif self._trouble:
            text = self._trouble
        elif not has_changes:
            text = ""
        else:
            text = tr(_NEEDS[self.draft.needs])
            if priced is not None and priced.choice is not None and not priced.fits:
                text = tr("The model would not load with this.") + " " + text
        self._needs.setText(text)
        tint(self._needs, colours(self.palette()).wrong if self._trouble else None)

    @Slot(int)
    def _on_page(self, row: int) -> None:
        self._stack.setCurrentIndex(row)
        self._apply_bar.setVisible(self._names[row] != ACTIVITY)
        self._show_form()

    @Slot(object)
    def _on_snapshot(self, snapshot: Snapshot) -> None:
        if not self.isVisible():
            return
        before, self._snapshot = self._snapshot, snapshot
        self.activity.show_snapshot(snapshot)
        chosen = chosen_model(self.draft.settings, before)
        is_same = (before.settings, before.models) == (snapshot.settings, snapshot.models)
        if is_same and before.workers == snapshot.workers:
            return
        self.draft = self.draft.rebased(snapshot.settings)
        self._show_draft()
        if chosen != chosen_model(self.draft.settings, snapshot):
            self._look()

    @Slot(str, object)
    def _on_moved(self, key: str, value: object) -> None:
        self._trouble = ""
        try:
            self.draft = self.draft.with_change(key, value)
        except SettingsInvalid as error:
            self._trouble = error.message
        self._show_draft()
        if key == "model.default":
            self._look()

    @Slot(object)
    def _on_proposed(self, changes: dict[str, object]) -> None:
        for key, value in changes.items():
            self._on_moved(key, value)

    @Slot()
    def _on_revert(self) -> None:
        self._trouble = ""
        self.draft = Draft(self._snapshot.settings)
        self._show_draft()
        self._look()

    @Slot()
    def _on_apply(self) -> None:
        if not self.draft.changes or self._is_applying:
            return
        self._is_applying = True
        self._trouble = ""
        self._bridge.send(ApplySettings(dict(self.draft.changes)), self._on_applied)
        self._show_needs()

    def _on_applied(self, outcome: Outcome) -> None:
        self._is_applying = False
        if outcome.error is not None:
            self._trouble = f"{outcome.title}. {outcome.message}"
        self._snapshot = self._bridge.snapshot
        self.draft = self.draft.rebased(self._snapshot.settings)
        self._show_draft()
        self._look()

    @Slot()
    def _look(self) -> None:
        if self.isVisible():
            self._facts.look(chosen_model(self.draft.settings, self._snapshot))

    @Slot(object)
    def _on_facts(self, facts: Facts) -> None:
        self.memory.show_facts(facts)
        self._show_needs()
