"""Asks before settings are applied with which the model would not load. Thread: GUI.

Shown by the panel; it does not block, and what works goes on working until it is answered.
"""

from PySide6.QtCore import Signal, Slot
from PySide6.QtWidgets import QMessageBox, QPushButton, QWidget

from app.ui.i18n import tr


class UnfitQuestion(QMessageBox):
    """Signals: `take_asked` for what fits instead, `apply_asked` for the settings as they are."""

    take_asked = Signal()
    apply_asked = Signal()

    def __init__(
        self, model_id: str, sentence: str, way_out: str, *, is_loaded: bool, parent: QWidget
    ) -> None:
        super().__init__(parent)
        self.setIcon(QMessageBox.Icon.Warning)
        self.setWindowTitle("Coolhead")
        self.setText(f"{model_id} " + tr("does not fit with these settings."))
        what = (
            tr("It is loaded now. Applied, it is unloaded, and its requests are refused.")
            if is_loaded
            else tr("Applied, it is not loaded, and its requests are refused.")
        )
        self.setInformativeText("\n\n".join(filter(None, (sentence, way_out, what))))
        roles = QMessageBox.ButtonRole
        self.take: QPushButton | None = None
        if way_out:
            self.take = self.addButton(tr("Use what fits"), roles.AcceptRole)
        self.apply = self.addButton(tr("Apply all the same"), roles.DestructiveRole)
        self.cancel = self.addButton(QMessageBox.StandardButton.Cancel)
        self.setDefaultButton(self.take or self.cancel)
        self.setEscapeButton(self.cancel)
        self.buttonClicked.connect(self._on_clicked)
        self.finished.connect(self.deleteLater)

    @Slot("QAbstractButton*")
    def _on_clicked(self, button: object) -> None:
        if button is self.take:
            self.take_asked.emit()
        elif button is self.apply:
            self.apply_asked.emit()
