"""How often the watchdog looks."""

from msgspec.structs import replace

from app.guard.cadence import period_s
from app.guard.lines import GIB, MIB, Lines
from app.guard.readings import Reading, WorkerReading

LINES = Lines()
BUSY = WorkerReading("w", "m", 100 * MIB, cap_own_bytes=2 * GIB, in_flight=1)
IDLE = replace(BUSY, in_flight=0)


def reading(*workers: WorkerReading, available: int = 8 * GIB) -> Reading:
    return Reading(1.0, 0.05, available, 16 * GIB, workers)


def test_cadence_without_workers_is_slow() -> None:
    assert period_s(LINES, reading(), 0) == 1.0
    assert period_s(LINES, reading(replace(BUSY, is_ending=True)), 0) == 1.0


def test_cadence_idle_workers_are_looked_at_seldom() -> None:
    assert period_s(LINES, reading(IDLE), 0) == 0.25


def test_cadence_idle_worker_that_grows_is_not_idle() -> None:
    assert period_s(LINES, reading(IDLE), 100 * MIB) == 0.05


def test_cadence_unknown_activity_counts_as_busy() -> None:
    assert period_s(LINES, reading(replace(BUSY, in_flight=-1)), 0) == 0.05


def test_cadence_near_a_line_is_fast() -> None:
    near_cap = replace(BUSY, own_bytes=2 * GIB - 400 * MIB)
    assert period_s(LINES, reading(near_cap), 0) == 0.02
    assert period_s(LINES, reading(BUSY, available=900 * MIB), 0) == 0.02
    assert period_s(LINES, reading(BUSY), 8 * GIB) == 0.02


def test_cadence_worker_without_cap_is_judged_by_the_machine() -> None:
    assert period_s(LINES, reading(replace(BUSY, cap_own_bytes=0)), 0) == 0.05
