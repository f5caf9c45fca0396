"""What a snapshot looks like, without Qt."""

import dataclasses

import pytest

from app.core.handle import Snapshot, WorkerSnapshot
from app.core.lifecycle import AppState, PressureLevel, WorkerState
from app.ui.notices import NoticeThrottle
from app.ui.units import value_text
from app.ui.view_state import Entry, IconKind, Unfit, view_state

LOADED = WorkerSnapshot("qwen", WorkerState.READY)


@pytest.mark.parametrize(
    ("snapshot", "icon", "line"),
    [
        (Snapshot(reason="asked by the user"), IconKind.STOPPED, "Stopped: asked by the user"),
        (Snapshot(state=AppState.STARTING), IconKind.STARTING, "Starting"),
        (Snapshot(state=AppState.READY), IconKind.READY, "Ready: no model loaded"),
        (Snapshot(state=AppState.READY, workers=(LOADED,)), IconKind.READY, "Ready: qwen"),
        (
            Snapshot(
                state=AppState.READY,
                workers=(WorkerSnapshot("qwen", WorkerState.STARTING, load_fraction=0.42),),
            ),
            IconKind.STARTING,
            "Ready: loading qwen 42 %",
        ),
        (
            Snapshot(state=AppState.BUSY, workers=(LOADED,), tokens_per_s=12.34, queued=2),
            IconKind.BUSY,
            "Busy: qwen, 12.3 tokens/s, 2 waiting",
        ),
        (
            Snapshot(state=AppState.PAUSED, is_paused=True, workers=(LOADED,)),
            IconKind.PAUSED,
            "Paused: qwen",
        ),
        (Snapshot(state=AppState.STOPPING, in_flight=1), IconKind.STOPPED, "Stopping: 1 in-flight"),
        (
            Snapshot(state=AppState.FAILED, reason="port 8555 is taken"),
            IconKind.FAILED,
            "Failed: port 8555 is taken",
        ),
    ],
)
def test_view_state_of_each_state_names_it(snapshot: Snapshot, icon: IconKind, line: str) -> None:
    shown = view_state(snapshot)
    assert shown.icon is icon
    assert shown.line == line
    assert line in shown.tooltip


def test_view_state_under_pressure_shows_it_and_says_why() -> None:
    snapshot = Snapshot(
        state=AppState.BUSY,
        pressure=PressureLevel.ELEVATED,
        pressure_sentence="1.2 GiB of 16 GiB are left.",
    )
    shown = view_state(snapshot)
    assert shown.icon is IconKind.PRESSURE
    assert "1.2 GiB of 16 GiB are left." in shown.details
    stopped = dataclasses.replace(snapshot, state=AppState.STOPPED)
    assert view_state(stopped).icon is IconKind.STOPPED


def test_view_state_worker_that_failed_says_why() -> None:
    worker = WorkerSnapshot("qwen", WorkerState.FAILED, reason="stopped: RAM ran short")
    shown = view_state(Snapshot(state=AppState.READY, workers=(worker,)))
    assert shown.details == ("qwen: stopped: RAM ran short",)
    assert shown.line == "Ready: no model loaded"


@pytest.mark.parametrize("state", list(AppState))
def test_view_state_entries_never_offer_start_and_stop_together(state: AppState) -> None:
    entries = view_state(Snapshot(state=state)).entries
    assert not (entries[Entry.START].is_enabled and entries[Entry.STOP].is_enabled)
    assert entries[Entry.PAUSE].is_enabled == entries[Entry.STOP].is_enabled
    assert entries[Entry.QUIT].is_enabled
    assert set(entries) == set(Entry)


def test_view_state_entries_follow_what_was_probed() -> None:
    entries = view_state(Snapshot(state=AppState.READY, is_paused=True, is_safe_mode=True)).entries
    assert entries[Entry.PAUSE].is_checked
    assert entries[Entry.LEAVE_SAFE_MODE].is_visible
    assert not entries[Entry.COPY].is_enabled
    with_port = view_state(Snapshot(endpoint="http://127.0.0.1:8555/v1")).entries
    assert with_port[Entry.COPY].is_enabled
    assert not with_port[Entry.LEAVE_SAFE_MODE].is_visible


def test_notice_throttle_same_cause_is_shown_once_in_five_minutes() -> None:
    throttle = NoticeThrottle()
    assert throttle.may_show("memory", 0.0)
    assert not throttle.may_show("memory", 299.9)
    assert throttle.may_show("swap", 10.0)
    assert throttle.may_show("memory", 300.0)
    assert not throttle.may_show("memory", 599.0)


def test_notice_throttle_many_causes_keeps_few() -> None:
    throttle = NoticeThrottle()
    assert all(throttle.may_show(f"cause {number}", float(number)) for number in range(2000))
    assert len(throttle._shown_s) <= 256


def test_units_of_values_read_well() -> None:
    assert value_text(8192, "tokens") == "8,192 tokens"
    assert value_text(True, "") == "on"
    assert value_text(1024**3, "bytes") == "1.0 GiB"
    assert value_text(0.5, "s") == "0.50 s"
    assert value_text("auto", "") == "auto"


UNFIT = Unfit("qwen", "2 slots of 4,096 tokens", "RAM: needs 20 GiB, may take 10 GiB.")


def test_view_state_model_that_does_not_fit_is_no_green_ready() -> None:
    shown = view_state(Snapshot(state=AppState.READY), UNFIT)
    assert shown.icon is IconKind.PRESSURE
    assert shown.line == "Ready: qwen does not fit (what fits: 2 slots of 4,096 tokens)"
    assert shown.details == ("RAM: needs 20 GiB, may take 10 GiB.",)
    paused = view_state(Snapshot(state=AppState.PAUSED, is_paused=True), UNFIT)
    assert paused.icon is IconKind.PAUSED
    assert "does not fit" in paused.line
    stopped = view_state(Snapshot(), UNFIT)
    assert (stopped.icon, stopped.line) == (IconKind.STOPPED, "Stopped")
    nothing = Unfit("qwen", "", "Nothing fits.")
    assert view_state(Snapshot(state=AppState.READY), nothing).line == "Ready: qwen does not fit"


def test_view_state_long_reason_is_cut_in_the_menu_and_whole_in_the_tooltip() -> None:
    reason = "Port 8555 is taken by process 4242 (python3). " * 4
    shown = view_state(Snapshot(state=AppState.FAILED, reason=reason))
    assert len(shown.menu_line) <= 72
    assert shown.menu_line.startswith("Failed: Port 8555 is taken")
    assert shown.menu_line.endswith("…")
    assert reason in shown.tooltip
    assert view_state(Snapshot()).menu_line == "Stopped"
