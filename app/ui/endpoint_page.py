"""The endpoint's address, to be copied, above the settings that go with it. Thread: GUI."""

from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QScrollArea, QVBoxLayout, QWidget

from app.core.handle import Snapshot
from app.ui.i18n import tr
from app.ui.settings_form import SettingsForm


class EndpointPage(QScrollArea):
    """`form` has the page's settings."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setWidgetResizable(True)
        self.setFrameShape(QScrollArea.Shape.NoFrame)
        self.form = SettingsForm("Endpoint", has_sliders=False)
        self.url = QLabel()
        self.url.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        font = self.url.font()
        font.setBold(True)
        self.url.setFont(font)
        self.url.setAccessibleName(tr("Endpoint URL"))
        self.hint = QLabel(tr("The base URL that OpenAI clients take."))
        self.copy = QPushButton(tr("Copy"))
        self.copy.clicked.connect(self._on_copy)
        top = QHBoxLayout()
        top.addWidget(self.url)
        top.addSpacing(12)
        top.addWidget(self.hint, 1)
        top.addWidget(self.copy)
        inside = QWidget()
        rows = QVBoxLayout(inside)
        rows.addLayout(top)
        rows.addSpacing(8)
        rows.addWidget(self.form)
        rows.addStretch(1)
        self.setWidget(inside)

    def show_snapshot(self, snapshot: Snapshot) -> None:
        self.url.setText(snapshot.endpoint or tr("Closed: Start opens it."))
        self.hint.setVisible(bool(snapshot.endpoint))
        self.copy.setEnabled(bool(snapshot.endpoint))

    @Slot()
    def _on_copy(self) -> None:
        QGuiApplication.clipboard().setText(self.url.text())
