"""What has happened, before the tray came up and since, and the caps of a worker."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.core.event_log import KEPT, EventLog, read_events
from app.core.events import Event, Notice, PressureChanged, SettingsChanged, StepTaken, WorkerExited
from app.core.lifecycle import CapKind, ExitCause, PressureLevel
from app.core.paths import Paths
from app.ui.activity import LINES_KEPT, ActivityLog, event_of
from app.ui.activity_page import ActivityPage
from app.ui.bridge import Bridge
from app.ui.panel import Panel
from tests.ui import imagined
from tests.ui.stand_in_core import StandInCore

WAIT_MS = 20_000


@pytest.fixture
def core(tmp_path: Path) -> Iterator[StandInCore]:
    made = StandInCore(imagined.snapshot(tmp_path)).start()
    yield made
    made.stop()


def _written(path: Path, *happened: Event) -> None:
    log = EventLog(path)
    for one in happened:
        log(one)


def test_event_of_every_kind_that_is_kept_comes_back(tmp_path: Path) -> None:
    happened: tuple[Event, ...] = (
        WorkerExited("qwen", 1, ExitCause.CAP_EXCEEDED, "3 GiB of 2 GiB.", {"own": [1, 2]}, at=1.5),
        PressureChanged(PressureLevel.COOL_DOWN, "Waiting.", at=2.5),
        SettingsChanged(("a", "b"), at=3.5),
        StepTaken("drop_caches", None, "qwen", "", at=4.5),
        Notice("ram", "Stopped", "RAM ran short.", is_serious=True, at=5.5),
    )
    _written(tmp_path / "events", *happened)
    assert tuple(event_of(record) for record in read_events(tmp_path / "events")) == happened
    assert event_of({"event": "OfTomorrow", "at": 1.0}) is None
    assert event_of({"event": "Notice", "at": "never"}) is None
    assert len(KEPT) == 9


def test_activity_log_earlier_events_stand_first_with_their_day_and_once() -> None:
    now_s = time.time()
    log = ActivityLog()
    heard = Notice("a", "Heard", "by the tray", at=now_s)
    log.add([heard])
    records: list[dict[str, object]] = [
        {"event": "Notice", "cause": "", "title": "Old", "text": "", "at": now_s - 3 * 86_400},
        {"event": "Notice", "cause": "", "title": "Just before", "text": "", "at": now_s - 0.2},
        {"event": "Notice", "cause": "a", "title": "Heard", "text": "x", "at": round(now_s, 3)},
        {"event": "LoadProgressed"},
    ]
    log.add_earlier(records)
    assert [line.split("  ", 1)[1] for line in log.lines] == [
        "Old",
        "Just before",
        "Heard. by the tray",
    ]
    assert log.lines[0].startswith(time.strftime("%Y-%m-%d ", time.localtime(now_s - 3 * 86_400)))


def test_activity_log_many_earlier_events_keep_the_newest() -> None:
    log = ActivityLog()
    log.add([Notice("", "Now", "", at=5000.0)])
    log.add_earlier(
        {
            "event": "StepTaken",
            "step": str(n),
            "cause": None,
            "model_id": "",
            "sentence": "",
            "at": n,
        }
        for n in range(1, 1000)
    )
    assert len(log.lines) == LINES_KEPT
    assert log.lines[-1].endswith("Now")
    assert log.lines[-2].endswith("999")


@pytest.mark.qt_log_ignore("This plugin does not support")
def test_panel_activity_page_shows_what_was_written_down(
    core: StandInCore, qtbot: QtBot, coolhead_home: Paths
) -> None:
    _written(
        coolhead_home.events_file,
        PressureChanged(PressureLevel.ELEVATED, "1.2 GiB of 16 GiB are left.", at=time.time() - 60),
    )
    bridge = Bridge(core.handle)
    panel = Panel(bridge, ActivityLog(), coolhead_home, imagined.machine)
    qtbot.addWidget(panel)
    panel.open_page("Activity")
    qtbot.waitUntil(
        lambda: "1.2 GiB of 16 GiB are left." in panel.activity.events.toPlainText(),
        timeout=WAIT_MS,
    )
    panel.close()
    bridge.close()


@pytest.mark.parametrize(
    ("cap", "kernel", "text"),
    [
        (950, 1536, "950 MiB guard, 1.5 GiB cgroup v1"),
        (950, 0, "950 MiB guard"),
        (0, 0, ""),
    ],
)
def test_activity_page_cap_names_the_guards_and_the_kernels(
    core: StandInCore, qtbot: QtBot, cap: int, kernel: int, text: str
) -> None:
    worker = dataclasses.replace(
        imagined.worker(),
        cap_bytes=cap * imagined.MIB,
        kernel_limit_bytes=kernel * imagined.MIB,
        cap_kind=CapKind.CGROUP_V1,
    )
    page = ActivityPage(ActivityLog())
    qtbot.addWidget(page)
    page.show_snapshot(dataclasses.replace(core.handle.snapshot, workers=(worker,)))
    item = page.workers.item(0, 6)
    assert item is not None
    assert item.text() == text
