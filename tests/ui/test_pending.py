"""What waits for Apply: taken up as it is typed, seen from every page, and asked about if it is unfit."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel, QPushButton
from pytestqt.qtbot import QtBot

from app.core.handle import ApplySettings
from app.core.paths import Paths
from app.ui import theme
from app.ui.activity import ActivityLog
from app.ui.bridge import Bridge
from app.ui.fields import NumberField, TextField
from app.ui.panel import Panel
from app.ui.unfit_question import UnfitQuestion
from tests.ui import imagined
from tests.ui.stand_in_core import StandInCore

WAIT_MS = 20_000

pytestmark = pytest.mark.qt_log_ignore("This plugin does not support")


@pytest.fixture
def core(tmp_path: Path) -> Iterator[StandInCore]:
    made = StandInCore(imagined.snapshot(tmp_path)).start()
    yield made
    made.stop()


@pytest.fixture
def panel(core: StandInCore, qtbot: QtBot, coolhead_home: Paths) -> Iterator[Panel]:
    bridge = Bridge(core.handle)
    made = Panel(bridge, ActivityLog(), coolhead_home, lambda: imagined.machine(16, 8))
    qtbot.addWidget(made)
    made.open_page("Memory")
    qtbot.waitUntil(lambda: made.memory.priced is not None, timeout=WAIT_MS)
    yield made
    made.close()
    bridge.close()


def _list(panel: Panel) -> list[str]:
    return [panel.list.item(row).text() for row in range(panel.list.count())]


def _make_unfit(panel: Panel) -> None:
    context = panel.memory.form.fields["model.context_tokens"]
    assert isinstance(context, NumberField)
    context.slider.setValue(context.scale.positions)
    assert panel.memory.is_refused


def _question(panel: Panel) -> UnfitQuestion:
    found = [one for one in panel.findChildren(UnfitQuestion) if one.isVisible()]
    assert len(found) == 1
    return found[0]


def test_text_field_typed_letter_by_letter_enables_apply_at_once(
    panel: Panel, qtbot: QtBot
) -> None:
    panel.open_page("Models")
    field = panel.models.form.fields["model.folders"]
    assert isinstance(field, TextField)
    assert not panel.bar.apply.isEnabled()
    QTest.keyClicks(field.edit, "/a b")
    assert panel.bar.apply.isEnabled()
    assert panel.draft.changes == {"model.folders": "/a b"}
    QTest.keyClicks(field.edit, " ")
    assert field.edit.text() == "/a b "
    assert panel.draft.changes == {"model.folders": "/a b"}
    panel.bar.revert.click()
    assert field.edit.text() == ""
    assert not panel.bar.apply.isEnabled()


def test_number_field_typed_enables_apply_and_is_not_rewritten(panel: Panel, qtbot: QtBot) -> None:
    reserve = panel.memory.form.fields["memory.ram_reserve_bytes"]
    assert isinstance(reserve, NumberField)
    reserve.number.setFocus()
    reserve.number.selectAll()
    QTest.keyClicks(reserve.number, "3.5")
    assert panel.bar.apply.isEnabled()
    assert reserve.number.text().startswith("3.5 ")
    assert panel.draft.changes == {"memory.ram_reserve_bytes": 3_758_096_384}
    assert reserve.title.font().bold()
    reserve.number.selectAll()
    QTest.keyClicks(reserve.number, "0.5")
    assert reserve.number.text().startswith("0.5 ")
    assert panel.draft.changes == {"memory.ram_reserve_bytes": 536_870_912}
    reserve._reset.click()
    assert reserve.number.text().startswith("auto: ")
    assert panel.draft.changes == {}


def test_pending_changes_of_other_pages_are_marked_and_named(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    panel.open_page("Endpoint")
    port = panel.endpoint.form.fields["server.port"]
    assert isinstance(port, NumberField)
    port.number.setValue(9000)
    assert panel.bar.note.text() == "At the next start of Coolhead: Port."
    assert panel.bar.apply.text() == "Apply"
    panel.open_page("Memory")
    assert "Endpoint •" in _list(panel)
    assert "Memory" in _list(panel)
    assert panel.bar.note.text() == "At the next start of Coolhead: Port (page Endpoint)."
    assert panel.bar.apply.text() == "Apply all (1)"
    panel.open_page("Activity")
    assert panel.bar.isVisible()
    panel.bar.apply.click()
    qtbot.waitUntil(lambda: not panel.draft.changes, timeout=WAIT_MS)
    assert core.received(ApplySettings) == [ApplySettings({"server.port": 9000})]
    assert "Endpoint" in _list(panel)
    assert not panel.bar.isVisible()


def test_apply_of_what_does_not_fit_asks_and_cancel_sends_nothing(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    core.put(workers=(imagined.worker(),))
    qtbot.waitUntil(lambda: bool(panel._snapshot.workers), timeout=WAIT_MS)
    _make_unfit(panel)
    panel.bar.apply.click()
    question = _question(panel)
    assert "does not fit" in question.text()
    assert "It is loaded now." in question.informativeText()
    assert "What fits:" in question.informativeText()
    assert question.defaultButton() is question.take
    question.cancel.click()
    assert core.received(ApplySettings) == []
    assert panel.draft.changes
    assert panel.bar.apply.isEnabled()


def test_apply_of_what_does_not_fit_can_take_what_fits(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    _make_unfit(panel)
    panel.bar.apply.click()
    take = _question(panel).take
    assert isinstance(take, QPushButton)
    take.click()
    qtbot.waitUntil(lambda: bool(core.received(ApplySettings)), timeout=WAIT_MS)
    sent = core.received(ApplySettings)[0].changes
    assert sent["model.context_tokens"] < 131_072
    qtbot.waitUntil(lambda: not panel.draft.changes, timeout=WAIT_MS)
    assert panel.memory.priced is not None
    assert panel.memory.priced.fits


def test_apply_of_what_does_not_fit_can_be_insisted_on(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    _make_unfit(panel)
    panel.bar.apply.click()
    question = _question(panel)
    assert "Applied, it is not loaded" in question.informativeText()
    question.apply.click()
    qtbot.waitUntil(lambda: bool(core.received(ApplySettings)), timeout=WAIT_MS)
    assert core.received(ApplySettings)[0].changes == {"model.context_tokens": 131_072}


def test_apply_of_what_does_not_fit_asks_nothing_where_it_is_forced_or_elsewhere(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    settings = core.handle.snapshot.settings.replace({"model.context_tokens": 131_072})
    core.put(settings=settings)
    qtbot.waitUntil(lambda: panel.memory.is_refused, timeout=WAIT_MS)
    panel._on_moved("desktop.log_level", "debug")
    panel.bar.apply.click()
    qtbot.waitUntil(lambda: len(core.received(ApplySettings)) == 1, timeout=WAIT_MS)
    qtbot.waitUntil(lambda: not panel.draft.changes, timeout=WAIT_MS)
    panel._on_moved("memory.force_load", True)
    panel.bar.apply.click()
    qtbot.waitUntil(lambda: len(core.received(ApplySettings)) == 2, timeout=WAIT_MS)


def _is_written_in(label: QLabel, colour: QColor) -> bool:
    return label.palette().windowText().color() == colour


def test_red_words_follow_another_theme(panel: Panel, qtbot: QtBot, qapp: QApplication) -> None:
    theme.use_scheme(qapp, "dark")
    _make_unfit(panel)
    hint = panel.memory.form.fields["model.context_tokens"].hint
    qtbot.waitUntil(lambda: bool(hint.text()), timeout=WAIT_MS)
    for name in ("light", "dark"):
        theme.use_scheme(qapp, name)
        paint = theme._DARK if name == "dark" else theme._LIGHT
        for label in (hint, panel.memory._verdict):
            qtbot.waitUntil(partial(_is_written_in, label, paint.wrong), timeout=WAIT_MS)
    theme.use_scheme(qapp, "system")


def test_endpoint_page_shows_the_url_and_copies_it(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    panel.open_page("Endpoint")
    assert panel.endpoint.url.text() == "http://127.0.0.1:8555/v1"
    QTest.mouseClick(panel.endpoint.copy, Qt.MouseButton.LeftButton)
    assert QApplication.clipboard().text() == "http://127.0.0.1:8555/v1"
    core.put(endpoint="")
    qtbot.waitUntil(lambda: not panel.endpoint.copy.isEnabled(), timeout=WAIT_MS)
    assert "Closed" in panel.endpoint.url.text()
