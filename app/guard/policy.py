"""Decides what to do about memory, from readings alone. Pure: no clock, no files, no signals.

Called by the watchdog with every sample, on the guard's only thread.
"""

from dataclasses import dataclass

from app.core.lifecycle import ExitCause, PressureLevel
from app.guard import sentences
from app.guard.lines import Lines, line_bytes
from app.guard.readings import Action, Reading, WorkerReading


@dataclass(slots=True)
class _Trend:
    at_s: float
    own_bytes: int
    slope_bytes_per_s: float = 0.0


class Policy:
    """A state machine with one input, `step`, and no other writer."""

    def __init__(self, lines: Lines, *, predict: bool = True) -> None:
        self.level = PressureLevel.NORMAL
        self._lines = lines
        self._predict = predict
        self._trends: dict[str, _Trend] = {}

    def slope(self, worker_id: str) -> float:
        trend = self._trends.get(worker_id)
        return trend.slope_bytes_per_s if trend else 0.0

    def step(self, reading: Reading) -> list[Action]:
        actions: list[Action] = []
        for worker in reading.workers:
            self._follow(worker, reading.at_s)
            action = None if worker.is_ending else self._check_cap(worker, reading)
            if action:
                actions.append(action)
        line = line_bytes(self._lines.kill_bytes, self._lines.kill_percent, reading.total_bytes)
        alive = [worker for worker in reading.workers if not worker.is_ending]
        if reading.available_bytes < line and len(alive) == len(reading.workers) and not actions:
            largest = max(alive, key=lambda one: one.own_bytes, default=None)
            if largest is not None:
                sentence = sentences.machine_low(largest, reading, line)
                actions.append(
                    Action(
                        "kill",
                        PressureLevel.KILL,
                        sentence,
                        ExitCause.MACHINE_MEMORY_LOW,
                        largest.worker_id,
                        line_bytes=line,
                    )
                )
        return actions

    def _follow(self, worker: WorkerReading, at_s: float) -> None:
        trend = self._trends.get(worker.worker_id)
        if trend is None:
            self._trends[worker.worker_id] = _Trend(at_s, worker.own_bytes)
        elif at_s > trend.at_s:
            trend.slope_bytes_per_s = (worker.own_bytes - trend.own_bytes) / (at_s - trend.at_s)
            trend.at_s, trend.own_bytes = at_s, worker.own_bytes

    def _check_cap(self, worker: WorkerReading, reading: Reading) -> Action | None:
        expected = worker.own_bytes
        if self._predict and worker.own_bytes > worker.planned_own_bytes:
            lookahead_s = reading.period_s + self._lines.lookahead_margin_s
            expected += int(max(self.slope(worker.worker_id), 0.0) * lookahead_s)
        if not worker.cap_own_bytes or expected < worker.cap_own_bytes:
            return None
        return Action(
            "kill",
            PressureLevel.KILL,
            sentences.cap_exceeded(worker, expected),
            ExitCause.CAP_EXCEEDED,
            worker.worker_id,
            line_bytes=worker.cap_own_bytes,
        )
