"""Signals that need a window: pressure and refaults."""

from typing import Any

from app.core.lifecycle import ExitCause, PressureLevel
from app.guard.lines import GIB, MIB, Lines
from app.guard.readings import Reading, WorkerReading
from app.guard.signals import Look, Signals

TOTAL = 16 * GIB
SCARCE = int(TOTAL * 0.15)
SCARCER = int(TOTAL * 0.11)


class Feed:
    def __init__(self) -> None:
        self.signals = Signals(Lines(), predict=True)
        self.at_s = 50.0

    def look(self, *workers: WorkerReading, available: int = TOTAL // 2, **values: Any) -> Look:
        self.at_s += 0.05
        return self.signals.look(Reading(self.at_s, 0.05, available, TOTAL, workers, **values))


def causes(look: Look) -> list[ExitCause]:
    return [signal.cause for signal in look.signals]


def stall(feed: Feed, seconds: float, share: float, available: int) -> Look:
    """Feeds a machine that is stalled for `share` of the time, in full for half of that."""
    for turn in range(round(seconds / 0.05)):
        some = turn * 0.05 * share
        look = feed.look(available=available, psi_some_s=some, psi_full_s=some / 2)
    return look


def test_signals_stall_while_memory_is_plenty_is_noise() -> None:
    assert stall(Feed(), 3, 0.9, TOTAL // 2).signals == ()


def test_signals_stall_while_memory_is_scarce_is_elevated() -> None:
    look = stall(Feed(), 1.5, 0.5, SCARCE)
    assert look.level is PressureLevel.ELEVATED
    assert "waited" in look.signals[0].sentence


def test_signals_long_full_stall_is_critical() -> None:
    look = stall(Feed(), 2.5, 0.9, SCARCER)
    assert look.level is PressureLevel.CRITICAL


def test_signals_small_stall_is_clear_only_when_well_below() -> None:
    assert stall(Feed(), 1.5, 0.03, SCARCE).signals == ()
    assert not stall(Feed(), 1.5, 0.045, SCARCE).is_clear


def test_signals_stall_right_after_a_kill_is_ignored() -> None:
    feed = Feed()
    feed.signals.ignore_psi(feed.at_s + 10)
    assert stall(feed, 2, 0.9, SCARCE).signals == ()


def test_signals_fast_sample_between_slow_ones_adds_no_point() -> None:
    feed = Feed()
    stall(feed, 1.5, 0.5, SCARCE)
    look = feed.look(available=SCARCE, psi_some_s=0.0, psi_full_s=0.0, is_slow=False)
    assert look.level is PressureLevel.ELEVATED


def mapped(refault_mib: float, held_mib: float = 1000, **values: Any) -> WorkerReading:
    defaults: dict[str, Any] = {
        "cap_own_bytes": 4 * GIB,
        "planned_own_bytes": 3 * GIB,
        "refault_bytes": int(refault_mib * MIB),
        "mapped_bytes": int(held_mib * MIB),
        "planned_mapped_bytes": 2000 * MIB,
    }
    return WorkerReading("w", "model", 50 * MIB, **(defaults | values))


def test_signals_refaults_of_its_own_group_are_thrashing() -> None:
    feed = Feed()
    levels = []
    for turn in range(30):
        look = feed.look(mapped(turn * 0.05 * 900))
        levels.append(look.level)
    assert levels[4] is PressureLevel.NORMAL
    assert levels[8] is PressureLevel.ELEVATED
    assert levels[-1] is PressureLevel.CRITICAL
    assert causes(look) == [ExitCause.THRASHING]
    assert "again" in look.signals[0].sentence


def test_signals_weights_coming_back_into_memory_are_not_thrashing() -> None:
    feed = Feed()
    for turn in range(40):
        look = feed.look(mapped(turn * 0.05 * 900, held_mib=100 + turn * 0.05 * 900))
    assert look.signals == ()


def machine_refaults(read_share: float, turns: int = 30) -> Look:
    feed = Feed()
    for turn in range(turns):
        again = int(turn * 0.05 * 900 * MIB)
        worker = mapped(0, refault_bytes=-1, read_bytes=int(again * read_share))
        look = feed.look(worker, refault_bytes=again)
    return look


def test_signals_machine_refaults_count_only_if_the_worker_read_them() -> None:
    assert causes(machine_refaults(0.9)) == [ExitCause.THRASHING]
    assert machine_refaults(0.3).signals == ()


def test_signals_machine_refaults_without_an_account_of_reads_blame_no_one() -> None:
    feed = Feed()
    for turn in range(30):
        look = feed.look(mapped(0, refault_bytes=-1), refault_bytes=int(turn * 50 * MIB))
    assert look.signals == ()


def test_signals_count_that_changes_its_owner_is_not_compared() -> None:
    feed = Feed()
    feed.look(mapped(0, refault_bytes=-1, read_bytes=0), refault_bytes=0)
    for turn in range(7):
        look = feed.look(mapped(9000 + turn))
    assert look.signals == ()


def test_signals_fast_sample_of_a_worker_adds_no_point() -> None:
    feed = Feed()
    for turn in range(30):
        look = feed.look(mapped(turn * 45), is_slow=False)
    assert look.signals == ()


def test_signals_worker_that_left_is_forgotten() -> None:
    feed = Feed()
    feed.look(mapped(0))
    feed.look(mapped(0, held_mib=10))
    feed.look()
    assert feed.signals.slope("w") == 0.0


def test_signals_same_moment_twice_keeps_the_slope() -> None:
    feed = Feed()
    feed.look(mapped(0))
    feed.at_s -= 0.05
    feed.look(mapped(0))
    assert feed.signals.slope("w") == 0.0
