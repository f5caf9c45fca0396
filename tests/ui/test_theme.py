"""What can be seen in the light and in the dark: empty boxes, what is disabled, words of weight."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtGui import QColor, QImage, QPalette
from PySide6.QtWidgets import QApplication, QCheckBox, QLabel, QMenu, QWidget
from pytestqt.qtbot import QtBot

from app.ui import theme
from app.ui.actions import Actions
from app.ui.bridge import Bridge
from app.ui.fusion import FusionStyle, use_fusion
from app.ui.stand_in import StandInWindow
from app.ui.view_state import Entry
from tests.ui.stand_in_core import StandInCore

pytestmark = pytest.mark.qt_log_ignore("This plugin does not support")


@pytest.fixture(params=["light", "dark"])
def scheme(request: pytest.FixtureRequest, qapp: QApplication) -> Iterator[str]:
    name = str(request.param)
    use_fusion(qapp)
    theme.use_scheme(qapp, name)
    qapp.processEvents()
    yield name
    theme.use_scheme(qapp, "system")


def _contrast(one: QColor, other: QColor) -> float:
    """Of the web's accessibility guidelines: 1 for none, 21 for black on white."""

    def luminance(colour: QColor) -> float:
        parts = [
            part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
            for part in (colour.redF(), colour.greenF(), colour.blueF())
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _most_contrast(picture: QImage, ground: QColor) -> float:
    return max(
        _contrast(picture.pixelColor(x, y), ground)
        for x in range(picture.width())
        for y in range(picture.height())
    )


def test_check_box_empty_can_be_seen_on_a_page_and_in_a_menu(
    scheme: str, qtbot: QtBot, qapp: QApplication
) -> None:
    assert isinstance(qapp.style(), FusionStyle)
    box = QCheckBox()
    qtbot.addWidget(box)
    ground = box.palette().color(QPalette.ColorRole.Window)
    assert _most_contrast(box.grab().toImage(), ground) > 3
    menu = QMenu()
    qtbot.addWidget(menu)
    menu.addAction(" ").setCheckable(True)
    menu.resize(menu.sizeHint())
    inner = menu.grab().toImage().copy(3, 3, menu.width() - 6, menu.height() - 6)
    assert _most_contrast(inner, inner.pixelColor(0, 0)) > 3
    empty = box.grab().toImage()
    box.setChecked(True)
    assert box.grab().toImage() != empty


def test_disabled_words_look_disabled(scheme: str, qtbot: QtBot) -> None:
    widget = QWidget()
    qtbot.addWidget(widget)
    palette, groups, roles = widget.palette(), QPalette.ColorGroup, QPalette.ColorRole
    ground = palette.color(roles.Window)
    for role in (roles.WindowText, roles.ButtonText, roles.Text):
        enabled = _contrast(palette.color(groups.Active, role), ground)
        disabled = _contrast(palette.color(groups.Disabled, role), ground)
        assert disabled < enabled / 2


def test_stand_in_window_words_can_be_read(
    scheme: str, core: StandInCore, qtbot: QtBot, tmp_path: Path
) -> None:
    bridge = Bridge(core.handle)
    actions = Actions(bridge, tmp_path)
    window = StandInWindow(actions)
    window.show()
    for label in window.findChildren(QLabel):
        if label.text():
            assert label.isEnabled()
            roles = QPalette.ColorRole
            words, ground = (
                label.palette().color(role) for role in (roles.WindowText, roles.Window)
            )
            assert _contrast(words, ground) > 7
    assert actions.entries[Entry.PAUSE].isCheckable()
    window.close_for_good()
    bridge.close()
