"""The panel's widgets, off screen, over a core that only pretends and an imagined machine."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.core.events import (
    LoadProgressed,
    Notice,
    PressureChanged,
    StepTaken,
    WorkerExited,
)
from app.core.handle import ApplySettings
from app.core.hardware.machine import Machine
from app.core.lifecycle import ExitCause, PressureLevel
from app.core.paths import Paths
from app.core.settings import all_settings
from app.ui import theme
from app.ui.activity import LINES_KEPT, ActivityLog, line_of
from app.ui.bridge import Bridge
from app.ui.fields import ChoiceField, NumberField, SwitchField, TextField
from app.ui.panel import Panel
from app.ui.plan_bar import PlanBar
from app.ui.settings_form import SettingsForm
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


def _number(panel: Panel, key: str) -> NumberField:
    found = panel.memory.form.fields[key]
    assert isinstance(found, NumberField)
    return found


def test_panel_every_setting_has_a_field_of_its_kind(panel: Panel, qtbot: QtBot) -> None:
    keys = set(panel.memory.form.fields)
    for form in panel._forms.values():
        keys |= set(form.fields)
    for known in all_settings():
        assert (f"{known.key}.CUDA0" if known.per_device else known.key) in keys
    desktop = panel._forms["Desktop"].fields
    assert isinstance(desktop["desktop.autostart"], SwitchField)
    assert isinstance(desktop["desktop.theme"], ChoiceField)
    assert isinstance(panel._forms["Endpoint"].fields["server.api_key"], TextField)
    assert isinstance(panel.memory.form.fields["model.default"], ChoiceField)


def test_panel_context_slider_into_the_red_and_back(panel: Panel, qtbot: QtBot) -> None:
    context = _number(panel, "model.context_tokens")
    assert context.number.text().startswith("auto: ")
    context.slider.setValue(context.scale.positions)
    priced = panel.memory.priced
    assert priced is not None
    assert not priced.fits
    assert panel.draft.value("model.context_tokens") == 131_072
    qtbot.waitUntil(lambda: "largest that fits" in context.hint.text(), timeout=WAIT_MS)
    assert "would not load" in panel.bar.note.text()
    assert panel.memory._take.isVisible()
    panel.memory._take.click()
    assert panel.memory.priced is not None
    assert panel.memory.priced.fits
    assert not context.hint.isVisible()
    context._reset.click()
    assert "model.context_tokens" not in panel.draft.changes


def test_panel_number_field_takes_units_and_steps(panel: Panel, qtbot: QtBot) -> None:
    reserve = _number(panel, "memory.ram_reserve_bytes")
    assert reserve.number.suffix() == " GiB"
    reserve.number.setValue(3.25)
    assert panel.draft.changes == {"memory.ram_reserve_bytes": 3_489_660_928}
    assert reserve.scale.value(reserve.slider.value()) == 3_489_660_928
    bar = panel.memory.findChildren(PlanBar)[0].bar
    assert bar is not None
    assert bar.reserve_bytes == 3_489_660_928


def test_panel_apply_sends_the_changes_and_clears_them(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    assert not panel.bar.apply.isEnabled()
    context = _number(panel, "model.context_tokens")
    context.number.setValue(8192)
    assert "Reloads the model" in panel.bar.note.text()
    panel.bar.apply.click()
    qtbot.waitUntil(lambda: not panel.draft.changes, timeout=WAIT_MS)
    assert core.received(ApplySettings) == [ApplySettings({"model.context_tokens": 8192})]
    assert core.handle.snapshot.settings.model.context_tokens == 8192
    assert not panel.bar.apply.isEnabled()
    assert panel.bar.note.text() == ""


def test_panel_apply_refused_keeps_the_changes_and_says_why(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    panel.open_page("Endpoint")
    port = panel._forms["Endpoint"].fields["server.port"]
    assert isinstance(port, NumberField)
    port.number.setValue(80)
    assert "next start" in panel.bar.note.text()
    panel.bar.apply.click()
    qtbot.waitUntil(lambda: "server.port cannot be 80" in panel.bar.note.text(), timeout=WAIT_MS)
    assert panel.draft.changes == {"server.port": 80}
    panel.bar.revert.click()
    assert panel.draft.changes == {}
    assert port.number.value() == 8555


def test_panel_settings_changed_elsewhere_are_shown(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    slots = _number(panel, "model.slots")
    core.put(settings=core.handle.snapshot.settings.replace({"model.slots": 3}))
    qtbot.waitUntil(lambda: slots.number.value() == 3, timeout=WAIT_MS)
    assert not panel.draft.changes


def test_panel_running_worker_shows_what_is_taken(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    core.put(workers=(imagined.worker(),))

    def taken() -> int | None:
        bar = panel.memory.findChildren(PlanBar)[0].bar
        return bar.taken_bytes if bar is not None else None

    qtbot.waitUntil(lambda: taken() == imagined.worker().taken_bytes["RAM"], timeout=WAIT_MS)
    panel.open_page("Activity")
    assert panel.activity.workers.rowCount() == 1
    first = panel.activity.workers.item(0, 0)
    assert first is not None
    assert first.text() == imagined.MODEL_ID


def test_panel_hidden_does_not_draw(panel: Panel, core: StandInCore, qtbot: QtBot) -> None:
    panel.close()
    before = panel.activity.speed.values
    with qtbot.waitSignal(panel._bridge.snapshot_changed, timeout=WAIT_MS):
        core.put(tokens_per_s=9.0)
    assert panel.activity.speed.values == before
    panel.open_page("Activity")
    assert panel.activity.speed.values[-1] == 9.0


def test_panel_wheel_over_a_field_without_focus_changes_nothing(panel: Panel, qtbot: QtBot) -> None:
    slider = _number(panel, "model.context_tokens").slider
    turned = QWheelEvent(
        QPointF(5, 5),
        QPointF(5, 5),
        QPoint(),
        QPoint(0, 120),
        Qt.MouseButton.NoButton,
        Qt.KeyboardModifier.NoModifier,
        Qt.ScrollPhase.NoScrollPhase,
        False,
    )
    QApplication.sendEvent(slider, turned)
    assert panel.draft.changes == {}


def test_panel_machine_that_cannot_be_read_leaves_the_sliders(
    core: StandInCore, qtbot: QtBot, coolhead_home: Paths
) -> None:
    def probe() -> Machine:
        raise OSError("no /proc here")

    bridge = Bridge(core.handle)
    panel = Panel(bridge, ActivityLog(), coolhead_home, probe)
    qtbot.addWidget(panel)
    panel.open_page("Memory")
    field = panel.memory.form.fields["model.slots"]
    assert isinstance(field, NumberField)
    field.number.setValue(2)
    assert panel.draft.changes == {"model.slots": 2}
    qtbot.waitUntil(lambda: "no /proc here" in panel.memory._verdict.text(), timeout=WAIT_MS)
    panel.close()
    bridge.close()


def test_panel_damaged_model_says_so(
    core: StandInCore, qtbot: QtBot, tmp_path: Path, coolhead_home: Paths
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    model = dataclasses.replace(core.handle.snapshot.models[0], path=str(broken))
    core.put(models=(model,))
    bridge = Bridge(core.handle)
    panel = Panel(bridge, ActivityLog(), coolhead_home, imagined.machine)
    qtbot.addWidget(panel)
    panel.open_page("Memory")
    qtbot.waitUntil(lambda: "broken.gguf" in panel.memory._verdict.text(), timeout=WAIT_MS)
    panel.close()
    bridge.close()


@pytest.mark.parametrize("name", ["light", "dark"])
def test_theme_changes_the_palette_and_the_drawings(
    panel: Panel, qtbot: QtBot, name: str, qapp: QApplication
) -> None:
    theme.use_scheme(qapp, name)
    qtbot.waitUntil(lambda: theme.is_dark(panel.palette()) is (name == "dark"), timeout=WAIT_MS)
    picture = panel.grab().toImage()
    corner = picture.pixelColor(2, picture.height() - 3)
    assert (corner.lightness() < 128) is (name == "dark")
    theme.use_scheme(qapp, "system")


def test_form_new_setting_needs_no_code(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.ui import settings_form

    first = next(known for known in all_settings() if known.name == "slots")
    new = dataclasses.replace(first, name="brand_new")
    monkeypatch.setattr(settings_form, "all_settings", lambda: iter([*all_settings(), new]))
    form = SettingsForm("Memory", has_sliders=True)
    qtbot.addWidget(form)
    assert isinstance(form.fields["model.brand_new"], NumberField)


def test_activity_log_tells_news_and_keeps_few() -> None:
    log = ActivityLog()
    log.add(
        [
            LoadProgressed("qwen", 1, 2),
            WorkerExited("qwen", 1, ExitCause.CAP_EXCEEDED, "It took 3 GiB of 2 GiB."),
            PressureChanged(PressureLevel.COOL_DOWN, "Waiting."),
            StepTaken("drop_caches", None, "qwen", ""),
            Notice("ram", "Stopped", "RAM ran short.", at=time.time()),
        ]
    )
    texts = [line[10:] for line in log.lines]
    assert texts == [
        "qwen: ended. It took 3 GiB of 2 GiB.",
        "Memory: cool-down. Waiting.",
        "drop caches",
        "Stopped. RAM ran short.",
    ]
    log.add(StepTaken(str(number), None, "", "") for number in range(1000))
    assert len(log.lines) == LINES_KEPT
    assert line_of(LoadProgressed("qwen", 1, 2)) == ""


def test_panel_an_hour_of_events_grows_by_less_than_2_mib(
    panel: Panel, core: StandInCore, qtbot: QtBot
) -> None:
    log = ActivityLog()
    panel._bridge.events_arrived.connect(log.add)
    seen = 0

    def an_hour(count: int) -> None:
        nonlocal seen
        for number in range(count):
            core.publish(StepTaken(f"step {number}", None, "qwen", "so and so many bytes"))
        seen += count
        qtbot.waitUntil(lambda: log.version >= seen, timeout=WAIT_MS)

    for _ in range(4):
        an_hour(900)
    before = psutil.Process().memory_info().rss
    for _ in range(16):
        an_hour(900)  # four a second for an hour: 14,400
    assert psutil.Process().memory_info().rss - before < 2 * 1024 * 1024
