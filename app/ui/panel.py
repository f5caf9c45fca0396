"""The settings panel. Thread: GUI."""

from PySide6.QtWidgets import QWidget

from app.ui.bridge import Bridge


class Panel(QWidget):
    def __init__(self, bridge: Bridge) -> None:
        super().__init__()
        self._bridge = bridge
        self.setWindowTitle("Coolhead")

    def open_page(self, page: str) -> None:
        self.setObjectName(page)
        self.show()
        self.raise_()
        self.activateWindow()
