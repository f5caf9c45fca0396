"""The window behind the tray: a list of pages, the page, and what Apply would do. Thread: GUI.

Made when it is first asked for; closing it only hides it. All pages write into one draft: the list
marks those on which something waits for Apply.
"""

from collections.abc import Callable

from PySide6.QtCore import QEvent, QSize, QTimer, Slot
from PySide6.QtGui import QCloseEvent, QHideEvent, QShowEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QListWidget,
    QScrollArea,
    QStackedWidget,
    QVBoxLayout,
    QWidget,
)

from app.core.errors import SettingsInvalid
from app.core.event_log import read_events
from app.core.handle import ApplySettings, Snapshot
from app.core.hardware.probe import probe_machine
from app.core.lifecycle import WorkerState
from app.core.paths import Paths
from app.ui.activity import ActivityLog
from app.ui.activity_page import ActivityPage
from app.ui.apply_bar import ApplyBar
from app.ui.bridge import Bridge, Outcome
from app.ui.draft import Draft
from app.ui.endpoint_page import EndpointPage
from app.ui.facts import FactSource, Probe, ReadModel, read_model
from app.ui.i18n import tr
from app.ui.memory_page import MemoryPage
from app.ui.models_page import ModelsPage
from app.ui.pricing import Facts, chosen_model
from app.ui.pulls import Pulls
from app.ui.settings_form import SettingsForm, pages
from app.ui.unfit_question import UnfitQuestion
from app.ui.view_state import Unfit

_LOOK_MS = 4000
_ROW_HEIGHT = 28
ACTIVITY = "Activity"
MODELS = "Models"
ENDPOINT = "Endpoint"
_PENDING = " •"


class Panel(QWidget):
    """Memory, the other settings pages, and the activity page."""

    def __init__(
        self,
        bridge: Bridge,
        log: ActivityLog,
        paths: Paths,
        probe: Probe | None = None,
        read: ReadModel = read_model,
        unfit: Callable[[], Unfit | None] = lambda: None,
    ) -> None:
        super().__init__()
        self.setWindowTitle("Coolhead")
        self.resize(900, 680)
        self._bridge = bridge
        self._unfit = unfit
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
        self.memory.models_asked.connect(self._on_models_asked)
        self.activity = ActivityPage(log)
        self._log = log
        bridge.ask(lambda: read_events(paths.events_file), self._on_earlier)
        self.pulls = Pulls(bridge, paths, parent=self)
        self.models = ModelsPage(bridge, paths, self.pulls)
        self.endpoint = EndpointPage()
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
        self.bar = ApplyBar()
        self.bar.apply_asked.connect(self._on_apply)
        self.bar.revert_asked.connect(self._on_revert)
        right = QVBoxLayout()
        right.addWidget(self._stack, 1)
        right.addWidget(self.bar)
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
            QTimer.singleShot(0, self, self._show_draft)  # once it has come to the pages too

    def _page(self, name: str) -> QWidget:
        if name == "Memory":
            return self.memory
        if name == ACTIVITY:
            return self.activity
        if name == MODELS:
            self._listen_to(name, self.models.form)
            return self.models
        if name == ENDPOINT:
            self._listen_to(name, self.endpoint.form)
            return self.endpoint
        form = SettingsForm(name, has_sliders=False)
        self._listen_to(name, form)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidget(form)
        return scroll

    def _listen_to(self, name: str, form: SettingsForm) -> None:
        form.moved.connect(self._on_moved)
        self._forms[name] = form

    @Slot()
    def _show_draft(self) -> None:
        self.memory.show_draft(self.draft, self._snapshot)
        self._show_form()
        self._show_needs()

    def _show_form(self) -> None:
        """Only the page that can be seen; the others are drawn when they are turned to."""
        form = self._forms.get(self._page_name)
        if form is not None:
            form.show_draft(self.draft, {})

    @property
    def _page_name(self) -> str:
        return self._names[max(0, self.list.currentRow())]

    def _show_needs(self) -> None:
        pending = self.draft.pages
        for row, name in enumerate(self._names):
            item = self.list.item(row)
            text = tr(name) + (_PENDING if name in pending else "")
            if item.text() != text:
                item.setText(text)
                item.setToolTip(tr("Changes here wait for Apply.") if name in pending else "")
        self.bar.show_draft(
            self.draft,
            self._page_name,
            fits=not self.memory.is_refused,
            is_applying=self._is_applying,
            trouble=self._trouble,
        )
        self.bar.setVisible(self._page_name != ACTIVITY or bool(pending))

    @Slot(int)
    def _on_page(self, row: int) -> None:
        self._stack.setCurrentIndex(row)
        self._show_form()
        self._show_needs()

    @Slot()
    def _on_models_asked(self) -> None:
        self.list.setCurrentRow(self._names.index(MODELS))

    def _on_earlier(self, outcome: Outcome) -> None:
        if isinstance(outcome.result, list):
            self._log.add_earlier(outcome.result)
            if self.isVisible():
                self.activity.show_snapshot(self._snapshot, self._unfit())

    @Slot(object)
    def _on_snapshot(self, snapshot: Snapshot) -> None:
        if not self.isVisible():
            return
        before, self._snapshot = self._snapshot, snapshot
        self.activity.show_snapshot(snapshot, self._unfit())
        self.models.show_snapshot(snapshot)
        self.endpoint.show_snapshot(snapshot)
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
        if self.memory.is_refused and self.draft.may_move_memory:
            self._ask_about_unfit()
        else:
            self._send()

    def _ask_about_unfit(self) -> None:
        """What works now is not taken away by a slip: the user says it a second time."""
        model = chosen_model(self.draft.settings, self._snapshot)
        priced = self.memory.priced
        if model is None or priced is None:
            self._send()
            return
        gone = {WorkerState.UNLOADED, WorkerState.FAILED}
        live = {one.model_id for one in self._snapshot.workers if one.state not in gone}
        found = self.memory.way_out
        question = UnfitQuestion(
            model.model_id,
            priced.sentence,
            found.sentence if found is not None and found.changes else "",
            is_loaded=model.model_id in live,
            parent=self,
        )
        question.take_asked.connect(self._take_and_send)
        question.apply_asked.connect(self._send)
        question.open()

    @Slot()
    def _take_and_send(self) -> None:
        found = self.memory.way_out
        if found is not None:
            self._on_proposed(dict(found.changes))
        if self.draft.changes:
            self._send()

    @Slot()
    def _send(self) -> None:
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
