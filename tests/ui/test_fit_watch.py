"""The tray says that the model does not fit before anybody has asked for it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.core.lifecycle import AppState
from app.ui.actions import Actions
from app.ui.bridge import Bridge
from app.ui.fit_watch import FitWatch
from app.ui.view_state import IconKind
from tests.ui import imagined
from tests.ui.stand_in_core import StandInCore

WAIT_MS = 20_000


@pytest.fixture
def core(tmp_path: Path) -> Iterator[StandInCore]:
    made = StandInCore(imagined.snapshot(tmp_path)).start()
    yield made
    made.stop()


@pytest.fixture
def actions(core: StandInCore, qtbot: QtBot) -> Iterator[Actions]:
    bridge = Bridge(core.handle)
    fit = FitWatch(bridge, lambda: imagined.machine(16))
    made = Actions(bridge, Path(), fit)
    yield made
    fit.deleteLater()
    bridge.close()


def _set(core: StandInCore, **changes: object) -> None:
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    core.put(settings=core.handle.snapshot.settings.replace(keys))


def test_tray_model_that_does_not_fit_is_told_and_shown(
    core: StandInCore, actions: Actions, qtbot: QtBot
) -> None:
    assert actions.state.line == "Ready: no model loaded"
    _set(core, model__context_tokens=131_072, model__slots=2)
    qtbot.waitUntil(lambda: "does not fit" in actions.state.line, timeout=WAIT_MS)
    assert actions.state.icon is IconKind.PRESSURE
    assert actions.state.line.startswith(f"Ready: {imagined.MODEL_ID} does not fit (what fits: ")
    assert "needs" in actions.state.tooltip
    assert "What fits:" in actions.state.tooltip
    assert len(actions.line.text()) <= 72
    _set(core, model__context_tokens=4096, model__slots=1)
    qtbot.waitUntil(lambda: actions.state.icon is IconKind.READY, timeout=WAIT_MS)
    assert actions.state.line == "Ready: no model loaded"


def test_tray_says_nothing_of_a_fit_that_is_no_question(
    core: StandInCore, actions: Actions, qtbot: QtBot
) -> None:
    _set(core, model__context_tokens=131_072, model__slots=2)
    qtbot.waitUntil(lambda: "does not fit" in actions.state.line, timeout=WAIT_MS)
    core.put(workers=(imagined.worker(),))
    loaded = f"Ready: {imagined.MODEL_ID}"
    qtbot.waitUntil(lambda: actions.state.line == loaded, timeout=WAIT_MS)
    core.put(workers=())
    qtbot.waitUntil(lambda: "does not fit" in actions.state.line, timeout=WAIT_MS)
    _set(core, memory__force_load=True)
    qtbot.waitUntil(lambda: actions.state.icon is IconKind.READY, timeout=WAIT_MS)
    _set(core, memory__force_load=False)
    qtbot.waitUntil(lambda: "does not fit" in actions.state.line, timeout=WAIT_MS)
    core.put(state=AppState.STOPPED)
    qtbot.waitUntil(lambda: actions.state.icon is IconKind.STOPPED, timeout=WAIT_MS)
    assert "fit" not in actions.state.line


def test_tray_damaged_model_is_no_question_of_fit(
    core: StandInCore, actions: Actions, qtbot: QtBot, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    model = dataclasses.replace(core.handle.snapshot.models[0], path=str(broken))
    _set(core, model__context_tokens=131_072, model__slots=2)
    qtbot.waitUntil(lambda: "does not fit" in actions.state.line, timeout=WAIT_MS)
    core.put(models=(dataclasses.replace(model, model_id="broken"),))
    qtbot.waitUntil(lambda: actions.state.line == "Ready: no model loaded", timeout=WAIT_MS)
