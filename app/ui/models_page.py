"""Which models there are, which could be fetched, and the settings that go with them. Thread: GUI.

Loading and unloading are commands to the core; what touches the disk or the network runs on threads
of the bridge's. The list is the snapshot's: a fetched model stands in it once the core has seen it.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from PySide6.QtCore import Qt, QUrl, Slot
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QMessageBox,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.core.handle import Command, LoadModel, ModelSummary, Snapshot, UnloadModel, WorkerSnapshot
from app.core.lifecycle import AppState, WorkerState
from app.core.models.catalogue import CatalogueEntry, catalogue
from app.core.models.library import DamagedModel, ModelLibrary
from app.core.models.removal import files_of, is_ours, remove
from app.core.models.sizes import size_text
from app.core.paths import Paths
from app.ui.bridge import Bridge, Outcome
from app.ui.i18n import tr
from app.ui.model_rows import CatalogueRow, InstalledRow
from app.ui.pulls import Pulls
from app.ui.settings_form import SettingsForm
from app.ui.theme import colours, tint

_SERVING = frozenset({AppState.STARTING, AppState.READY, AppState.BUSY, AppState.PAUSED})
_GONE = frozenset({WorkerState.UNLOADED, WorkerState.FAILED})


class ModelsPage(QScrollArea):
    """`form` has the page's settings; the panel listens to it as to those of other pages."""

    def __init__(
        self, bridge: Bridge, paths: Paths, pulls: Pulls, parent: QWidget | None = None
    ) -> None:
        super().__init__(parent)
        self._bridge = bridge
        self._paths = paths
        self._pulls = pulls
        self._snapshot = Snapshot()
        self._busy: set[str] = set()
        self._doomed: dict[str, ModelSummary] = {}
        """Models that are deleted as soon as their workers are gone."""
        self._fetched: set[str] = set()
        self.installed: dict[str, InstalledRow] = {}
        self.offered = [CatalogueRow(entry) for entry in catalogue()]
        self.trouble = QLabel()
        self.trouble.setWordWrap(True)
        self.trouble.hide()
        self._library = ModelLibrary(paths)
        self._looked_at: object = None
        self.damaged = QLabel()
        self.damaged.setWordWrap(True)
        self.damaged.setTextFormat(Qt.TextFormat.PlainText)
        self.damaged.hide()
        self.nothing = QLabel(tr("No model is installed yet. Pull one below."))
        self.form = SettingsForm("Models", has_sliders=False)
        self._rows = QVBoxLayout()
        self._rows.setSpacing(4)
        self._lay_out()
        for row in self.offered:
            row.pull_asked.connect(self._on_pull)
            row.cancel_asked.connect(pulls.cancel)
        pulls.moved.connect(self._show_offered)
        pulls.ended.connect(self._on_pulled)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._show_installed()
        self._show_offered()
        self._delete_doomed()
        what = (snapshot.models, snapshot.settings.model.folders)
        if what != self._looked_at:
            self._looked_at = what
            self._look_for_damaged()

    def _look_for_damaged(self) -> None:
        """The snapshot names models only; a file that is none must not be missed in silence."""
        folders = self._snapshot.settings.model.folders
        library = self._library

        def look() -> tuple[DamagedModel, ...]:
            library.look_in([Path(part) for part in folders.split(os.pathsep) if part])
            return library.damaged()

        self._bridge.ask(look, self._on_damaged)

    def _on_damaged(self, outcome: Outcome) -> None:
        if isinstance(outcome.result, tuple):
            told = [f"{one.path}: {one.error.message}" for one in outcome.result]
            self.damaged.setText("\n".join((tr("Cannot be used:"), *told)) if told else "")
            self.damaged.setVisible(bool(told))

    def _lay_out(self) -> None:
        self.setWidgetResizable(True)
        self.setFrameShape(QFrame.Shape.NoFrame)
        inside = QWidget()
        rows = QVBoxLayout(inside)
        rows.setSpacing(6)
        head = QHBoxLayout()
        head.addWidget(_heading(tr("Installed models")))
        where = QLabel(str(self._paths.models))
        where.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        head.addSpacing(8)
        head.addWidget(where, 1)
        self.open_folder = QPushButton(tr("Open folder"))
        self.open_folder.clicked.connect(lambda: self._open(self._paths.models))
        head.addWidget(self.open_folder)
        rows.addLayout(head)
        rows.addWidget(self.trouble)
        rows.addWidget(self.nothing)
        rows.addLayout(self._rows)
        rows.addWidget(self.damaged)
        rows.addSpacing(8)
        rows.addWidget(_heading(tr("To fetch")))
        for row in self.offered:
            rows.addWidget(row)
        rows.addSpacing(8)
        rows.addWidget(_heading(tr("Settings")))
        rows.addWidget(self.form)
        rows.addStretch(1)
        self.setWidget(inside)

    def _show_installed(self) -> None:
        models = {model.model_id: model for model in self._snapshot.models}
        paths = {name: row.model.path for name, row in self.installed.items()}
        if paths != {name: model.path for name, model in models.items()}:
            self._build_installed(models.values())
        workers = {worker.model_id: worker for worker in self._snapshot.workers}
        can_load = self._snapshot.state in _SERVING
        for name, row in self.installed.items():
            row.show_state(
                models[name],
                workers.get(name),
                can_load=can_load,
                is_busy=name in self._busy or name in self._doomed,
            )
        self.nothing.setVisible(not models)

    def _build_installed(self, models: Iterable[ModelSummary]) -> None:
        for row in self.installed.values():
            row.hide()
            row.deleteLater()
        self.installed = {}
        for model in models:
            row = InstalledRow(model, is_ours=is_ours(Path(model.path), self._paths.models))
            row.load_asked.connect(self._on_load)
            row.unload_asked.connect(self._on_unload)
            row.delete_asked.connect(self._on_delete)
            row.folder_asked.connect(self._on_folder)
            self.installed[model.model_id] = row
            self._rows.addWidget(row)

    @Slot()
    def _show_offered(self) -> None:
        names = [Path(model.path).name.lower() for model in self._snapshot.models]
        for row in self.offered:
            entry = row.entry
            there = entry.name in self._fetched or any(_is_of(entry, name) for name in names)
            row.show_state(self._pulls.running.get(entry.name), is_installed=there)

    # What the user wants.

    @Slot(object)
    def _on_load(self, model: ModelSummary) -> None:
        self._send(model, LoadModel(model.model_id))

    @Slot(object)
    def _on_unload(self, model: ModelSummary) -> None:
        self._send(model, UnloadModel(model.model_id))

    def _send(self, model: ModelSummary, command: Command) -> None:
        self._say("")
        self._busy.add(model.model_id)

        def done(outcome: Outcome) -> None:
            self._busy.discard(model.model_id)
            if outcome.error is not None:
                self._say(f"{outcome.title}. {outcome.message}")
            self.show_snapshot(self._bridge.snapshot)

        self._bridge.send(command, done)
        self._show_installed()

    @Slot(object)
    def _on_folder(self, model: ModelSummary) -> None:
        self._open(Path(model.path).parent)

    @Slot(object)
    def _on_delete(self, model: ModelSummary) -> None:
        question = QMessageBox(self)
        question.setIcon(QMessageBox.Icon.Warning)
        question.setWindowTitle("Coolhead")
        question.setText(tr("Delete") + f" {model.model_id}?")
        size = size_text(model.size_bytes)
        question.setInformativeText(f"{model.path}\n\n{size} {tr('are freed. It is not kept.')}")
        delete = question.addButton(tr("Delete"), QMessageBox.ButtonRole.DestructiveRole)
        cancel = question.addButton(QMessageBox.StandardButton.Cancel)
        question.setDefaultButton(cancel)
        question.setEscapeButton(cancel)
        delete.clicked.connect(lambda: self._doom(model))
        question.finished.connect(question.deleteLater)
        question.open()

    def _doom(self, model: ModelSummary) -> None:
        def spare(outcome: Outcome) -> None:
            if outcome.error is not None:
                self._doomed.pop(model.model_id, None)
                self._say(f"{outcome.title}. {outcome.message}")

        self._say("")
        self._doomed[model.model_id] = model
        worker = self._worker(model)
        if worker is not None and worker.state not in _GONE:
            self._bridge.send(UnloadModel(model.model_id), spare)
        self._show_installed()
        self._delete_doomed()

    def _delete_doomed(self) -> None:
        for model in list(self._doomed.values()):
            worker = self._worker(model)
            is_gone = worker is None or worker.state in _GONE
            if is_gone and model.model_id not in self._busy:
                self._busy.add(model.model_id)
                self._delete(model)

    def _delete(self, model: ModelSummary) -> None:
        path, folder = Path(model.path), self._paths.models

        def done(outcome: Outcome) -> None:
            self._doomed.pop(model.model_id, None)
            self._busy.discard(model.model_id)
            if outcome.error is not None:
                self._say(f"{outcome.title}. {outcome.message}")
            else:
                self._fetched.clear()
            self._show_installed()

        self._bridge.ask(lambda: remove(path, files_of(path), folder), done)

    @Slot(object)
    def _on_pull(self, entry: CatalogueEntry) -> None:
        self._say("")
        self._pulls.start(entry)

    @Slot(object, object)
    def _on_pulled(self, entry: CatalogueEntry, outcome: Outcome) -> None:
        self._look_for_damaged()
        if outcome.error is None:
            self._fetched.add(entry.name)
        else:
            self._say(f"{outcome.title}. {outcome.message}")
        self._show_offered()

    def _worker(self, model: ModelSummary) -> WorkerSnapshot | None:
        found = (one for one in self._snapshot.workers if one.model_id == model.model_id)
        return next(found, None)

    def _open(self, folder: Path) -> None:
        if not QDesktopServices.openUrl(QUrl.fromLocalFile(str(folder))):
            self._say(tr("No program opens") + f" {folder}.")

    def _say(self, text: str) -> None:
        self.trouble.setText(text)
        self.trouble.setVisible(bool(text))
        tint(self.trouble, colours(self.palette()).wrong)


def _is_of(entry: CatalogueEntry, file_name: str) -> bool:
    """Whether an installed file, its name in lower case, is what the entry would fetch."""
    if entry.file:
        return file_name == entry.file.lower()
    base = entry.repo.rpartition("/")[2].lower().removesuffix("-gguf")
    return file_name.startswith(base) and entry.quantization.lower() in file_name


def _heading(text: str) -> QLabel:
    label = QLabel(text)
    font = label.font()
    font.setBold(True)
    label.setFont(font)
    return label
