"""The seam between the two threads."""

import sys
import threading
import time

from PySide6.QtCore import QObject, Signal
from pytestqt.qtbot import QtBot

from app.core.errors import SettingsInvalid
from app.core.events import Event, Notice, StepTaken
from app.core.handle import ApplySettings, Snapshot, Start
from app.ui.bridge import Bridge, Outcome
from tests.ui.stand_in_core import StandInCore


class _Emitter(QObject):
    told = Signal(bool)
    silent = Signal()


def test_signal_2000_emits_leave_the_reference_count_of_true_unchanged(qtbot: QtBot) -> None:
    emitter = _Emitter()
    heard: list[bool] = []
    emitter.told.connect(heard.append)
    before = sys.getrefcount(True)
    for _ in range(2000):
        emitter.told.emit(True)
        emitter.silent.emit()
    heard.clear()
    assert abs(sys.getrefcount(True) - before) < 20


def test_bridge_storm_of_events_reaches_the_gui_four_times_a_second(
    core: StandInCore, qtbot: QtBot
) -> None:
    bridge = Bridge(core.handle)
    batches: list[tuple[Event, ...]] = []
    threads: set[int] = set()

    def take(happened: object) -> None:
        assert isinstance(happened, tuple)
        batches.append(happened)
        threads.add(threading.get_ident())

    bridge.events_arrived.connect(take)
    began_s = time.monotonic()
    core.publish(Notice("warm", "", ""))
    for number in range(500):
        core.publish(StepTaken(f"step {number}", None, "qwen", ""))
    qtbot.waitUntil(lambda: sum(len(batch) for batch in batches) == 501, timeout=20_000)
    took_s = time.monotonic() - began_s
    assert len(batches) <= 2 + took_s * 4
    assert threads == {threading.get_ident()}
    steps = [one.step for batch in batches for one in batch if isinstance(one, StepTaken)]
    assert steps == [f"step {number}" for number in range(500)]
    bridge.close()


def test_bridge_snapshot_without_event_is_pulled(core: StandInCore, qtbot: QtBot) -> None:
    bridge = Bridge(core.handle)
    with qtbot.waitSignal(bridge.snapshot_changed, timeout=20_000) as seen:
        core.put(tokens_per_s=5.0)
    assert seen.args is not None
    assert isinstance(seen.args[0], Snapshot)
    bridge.close()


def test_bridge_command_outcome_comes_back_on_the_gui_thread(
    core: StandInCore, qtbot: QtBot
) -> None:
    bridge = Bridge(core.handle)
    outcomes: list[Outcome] = []
    threads: list[int] = []

    def on_done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        threads.append(threading.get_ident())

    bridge.send(Start(), on_done)
    bridge.send(ApplySettings({"server.port": 80}), on_done)
    qtbot.waitUntil(lambda: len(outcomes) == 2, timeout=20_000)
    assert outcomes[0].error is None
    assert isinstance(outcomes[1].error, SettingsInvalid)
    assert outcomes[1].title == "A setting is wrong"
    assert "port" in outcomes[1].message
    assert set(threads) == {threading.get_ident()}
    bridge.close()


def test_bridge_core_that_is_gone_answers_with_an_error(core: StandInCore, qtbot: QtBot) -> None:
    bridge = Bridge(core.handle)
    core.stop()
    outcomes: list[Outcome] = []
    bridge.send(Start(), outcomes.append)
    qtbot.waitUntil(lambda: bool(outcomes), timeout=20_000)
    assert outcomes[0].error is not None
    bridge.close()
