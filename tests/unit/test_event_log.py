"""What happened is kept, bounded, and readable whatever became of the file."""

from pathlib import Path

import pytest

from app.core import event_log
from app.core.event_log import EventLog, read_events
from app.core.events import EventBus, LoadProgressed, StepTaken, WorkerExited
from app.core.lifecycle import ExitCause


def test_event_log_keeps_causes_and_evidence(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    bus = EventBus()
    bus.subscribe(log)
    bus.publish(WorkerExited("m", 7, ExitCause.CAP_EXCEEDED, "It took 5 of 4.", {"own_bytes": 5}))
    bus.publish(LoadProgressed("m", 1, 2))
    bus.publish(StepTaken("killed", ExitCause.CAP_EXCEEDED, "m", "Stopped."))
    kept = read_events(log.path)
    assert [record["event"] for record in kept] == ["WorkerExited", "StepTaken"]
    assert kept[0]["cause"] == "cap_exceeded"
    assert kept[0]["evidence"] == {"own_bytes": 5}
    assert kept == log.recent()


def test_event_log_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MAX_BYTES", 500)
    log = EventLog(tmp_path / "events.jsonl")
    for number in range(100):
        log(StepTaken("killed", None, "m", f"number {number}"))
    files = list(tmp_path.iterdir())
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) < 2000
    assert read_events(log.path)[-1]["sentence"] == "number 99"


def test_event_log_passes_over_damaged_lines(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.path.write_text('{"event": "x", "at": 1}\n{broken\n[]\n')
    assert read_events(log.path) == [{"event": "x", "at": 1}]


def test_event_log_unwritable_folder_loses_only_the_line(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "missing" / "events.jsonl")
    log(StepTaken("killed", None, "m", "x"))
    assert len(log.recent()) == 1


def test_event_bus_deaf_listener_does_not_silence_the_rest() -> None:
    bus = EventBus()
    heard: list[object] = []

    def deaf(event: object) -> None:
        raise RuntimeError(str(event))

    bus.subscribe(deaf)
    unsubscribe = bus.subscribe(heard.append)
    bus.publish(LoadProgressed("m", 1, 2))
    unsubscribe()
    bus.publish(LoadProgressed("m", 2, 2))
    assert len(heard) == 1
