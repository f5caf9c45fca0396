"""Safe mode: after an unclean end, or three kills within ten minutes."""

import os
from pathlib import Path

import pytest

from app.core.lifecycle import ExitCause
from app.guard.safe_mode import KillLog, RunMarker, boot_id, decide


def marker(state: Path, boot: str = "b1") -> RunMarker:
    return RunMarker(state, lambda: boot)


def test_safe_mode_first_start_is_normal(tmp_path: Path) -> None:
    assert not decide(marker(tmp_path).begin(), [], "b1").is_active


def test_safe_mode_after_an_orderly_end_is_off(tmp_path: Path) -> None:
    first = marker(tmp_path)
    first.begin()
    first.note_loaded(["m"])
    first.end()
    first.end()
    assert marker(tmp_path).begin() is None


def test_safe_mode_after_a_crash_names_what_was_loaded(tmp_path: Path) -> None:
    first = marker(tmp_path)
    first.begin(lambda: 5.0)
    first.note_loaded(["llama", "qwen"])
    left = marker(tmp_path).begin()
    assert left is not None
    assert left.started_at_s == 5.0
    found = decide(left, [], "b1")
    assert found.is_active
    assert "Coolhead was ended with llama, qwen loaded" in found.reason
    assert "computer went down" in decide(left, [], "b2").reason


def test_safe_mode_marker_of_a_running_process_is_no_crash(tmp_path: Path) -> None:
    text = f'{{"pid": {os.getppid()}, "started_at_s": 1, "boot": "b1"}}'
    (tmp_path / "running.json").write_text(text)
    assert marker(tmp_path).begin() is None
    (tmp_path / "running.json").write_text(text)
    assert marker(tmp_path, "b2").begin() is not None
    (tmp_path / "running.json").write_text(text.replace(str(os.getppid()), "999999999"))
    assert marker(tmp_path).begin() is not None


def test_safe_mode_damaged_files_count_as_none(tmp_path: Path) -> None:
    (tmp_path / "running.json").write_text("{")
    (tmp_path / "kills.json").write_text('[{"at_s": "x"}]')
    assert marker(tmp_path).begin() is None
    assert KillLog(tmp_path).recent() == []


def test_safe_mode_unwritable_folder_does_not_stop_the_start(tmp_path: Path) -> None:
    absent = tmp_path / "none"
    marker(absent).begin()
    assert KillLog(absent).record(ExitCause.KERNEL_OOM, "m") == 1


def test_safe_mode_note_before_begin_writes_nothing(tmp_path: Path) -> None:
    marker(tmp_path).note_loaded(["m"])
    assert list(tmp_path.iterdir()) == []


def test_kills_are_kept_and_counted_within_the_window(tmp_path: Path) -> None:
    clock = [1000.0]
    log = KillLog(tmp_path, lambda: clock[0])
    assert log.record(ExitCause.CAP_EXCEEDED, "a") == 1
    clock[0] += 700
    assert log.record(ExitCause.CAP_EXCEEDED, "a") == 1
    assert log.record(ExitCause.KERNEL_OOM, "b", "It was b.") == 2
    again = KillLog(tmp_path, lambda: clock[0])
    assert len(again.recent()) == 2
    assert len(again.recent("b")) == 1
    assert not decide(None, again.recent()).is_active
    again.record(ExitCause.KERNEL_OOM, "b", "It was b.")
    found = decide(None, again.recent())
    assert found.is_active
    assert found.reason.endswith("It was b.")
    again.clear()
    again.clear()
    assert KillLog(tmp_path, lambda: clock[0]).recent() == []


def test_boot_is_named_where_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert boot_id() == boot_id()
