"""Light, dark, or the desktop's own colours, and the colours of the drawings that go with each.

Thread: GUI. `Theme` follows the setting `desktop.theme`; the drawings ask for `colours()`.
"""

from dataclasses import dataclass

from PySide6.QtCore import QObject, Qt, Slot
from PySide6.QtGui import QColor, QPalette
from PySide6.QtWidgets import QApplication, QLabel

from app.core.handle import Snapshot
from app.ui.bridge import Bridge
from app.ui.fusion import use_fusion

_SCHEMES = {
    "system": Qt.ColorScheme.Unknown,
    "light": Qt.ColorScheme.Light,
    "dark": Qt.ColorScheme.Dark,
}


@dataclass(frozen=True, slots=True)
class Colours:
    """One colour for each part of a memory; told apart in light and dark and by the colour-blind."""

    others: QColor
    reserve: QColor
    weights: QColor
    kv: QColor
    compute: QColor
    cache: QColor
    free: QColor
    cap: QColor
    taken: QColor
    wrong: QColor
    right: QColor
    line: QColor


_LIGHT = Colours(
    others=QColor("#9aa3ad"),
    reserve=QColor("#c5cbd3"),
    weights=QColor("#2563b0"),
    kv=QColor("#1b998b"),
    compute=QColor("#e0a100"),
    cache=QColor("#a45fbf"),
    free=QColor("#eef1f4"),
    cap=QColor("#1f2933"),
    taken=QColor("#0f172a"),
    wrong=QColor("#c92a2a"),
    right=QColor("#1f7a45"),
    line=QColor("#8a94a0"),
)
_DARK = Colours(
    others=QColor("#6b7480"),
    reserve=QColor("#4a525c"),
    weights=QColor("#5b9bec"),
    kv=QColor("#35c4b3"),
    compute=QColor("#f0bc3e"),
    cache=QColor("#c58ae0"),
    free=QColor("#2a2f36"),
    cap=QColor("#f4f6f8"),
    taken=QColor("#f4f6f8"),
    wrong=QColor("#ff6b6b"),
    right=QColor("#57d08b"),
    line=QColor("#8a94a0"),
)


def is_dark(palette: QPalette) -> bool:
    return palette.color(QPalette.ColorRole.Window).lightness() < 128


def colours(palette: QPalette) -> Colours:
    """The drawing colours that go with `palette`."""
    return _DARK if is_dark(palette) else _LIGHT


def tint(label: QLabel, colour: QColor | None) -> None:
    """Writes `label` in a colour, or in the usual one; a palette, since style sheets are slow."""
    wanted = colour or QApplication.palette().color(QPalette.ColorRole.WindowText)
    if label.palette().color(QPalette.ColorRole.WindowText) == wanted:
        return
    palette = QPalette()
    if colour is not None:
        palette.setColor(QPalette.ColorRole.WindowText, colour)
    label.setPalette(palette)


class Theme(QObject):
    """Keeps the application's palette what the setting says."""

    def __init__(self, app: QApplication, bridge: Bridge, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._app = app
        self._name = "system"
        use_fusion(app)
        bridge.snapshot_changed.connect(self._show)
        self._show(bridge.snapshot)

    @Slot(object)
    def _show(self, snapshot: Snapshot) -> None:
        self.use(snapshot.settings.desktop.theme)

    def use(self, name: str) -> None:
        """Takes `system`, `light` or `dark`."""
        if name == self._name:
            return
        self._name = name
        use_scheme(self._app, name)


def use_scheme(app: QApplication, name: str) -> None:
    """Asks Qt for the scheme; where the platform has none of its own, sets a palette."""
    app.styleHints().setColorScheme(_SCHEMES[name])
    wants_dark = name == "dark"
    if name != "system" and is_dark(app.palette()) is not wants_dark:
        use_fusion(app, is_forced=True)
        app.setPalette(_palette(wants_dark))
    elif name == "system":
        app.setPalette(QPalette())


def _palette(wants_dark: bool) -> QPalette:
    if not wants_dark:
        return _with_disabled(QPalette(QColor("#e4e7eb"), QColor("#f3f4f6")), QColor("#8f98a3"))
    palette = QPalette(QColor("#343a42"), QColor("#22262b"))
    palette.setColor(QPalette.ColorRole.Base, QColor("#14171a"))
    palette.setColor(QPalette.ColorRole.AlternateBase, QColor("#1a1d21"))
    palette.setColor(QPalette.ColorRole.Highlight, QColor("#2f6fb3"))
    palette.setColor(QPalette.ColorRole.PlaceholderText, QColor("#8a94a0"))
    return _with_disabled(palette, QColor("#6b7480"))


def _with_disabled(palette: QPalette, colour: QColor) -> QPalette:
    """A palette made of two colours draws what is disabled like what is not."""
    roles = QPalette.ColorRole
    for role in (roles.WindowText, roles.Text, roles.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, role, colour)
    return palette
