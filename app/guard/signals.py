"""What a sample says about pressure, with the windows that it takes to say it. Pure.

`policy` asks `Signals.look` with every reading and decides by the answer. Worker signals name the
worker; machine signals name none.
"""

import collections
from dataclasses import dataclass

import msgspec

from app.core.lifecycle import ExitCause, PressureLevel
from app.core.lines import share
from app.guard import sentences
from app.guard.lines import Lines
from app.guard.readings import Reading, WorkerReading

SWAP_WINDOW_S = 5.0
_CUT_SHORT = 0.9
"""Samples are late by a little: a window counts as full at this part of its length."""


@dataclass(frozen=True, slots=True)
class Signal:
    """One reason for a level. `needed_bytes` is what would have to come free to be clear of it."""

    level: PressureLevel
    cause: ExitCause
    sentence: str
    worker_id: str = ""
    line_bytes: int = 0
    needed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """All signals of one reading.

    Attributes:
        is_clear: every figure is well off its first line.
        is_off_critical: no signal is critical, and available memory is well off that line.
    """

    signals: tuple[Signal, ...]
    is_clear: bool
    is_off_critical: bool

    @property
    def level(self) -> PressureLevel:
        return max((signal.level for signal in self.signals), default=PressureLevel.NORMAL)


class _Point(msgspec.Struct, frozen=True, gc=False):
    at_s: float
    own_bytes: int
    held_bytes: int
    swap_bytes: int
    refault_bytes: int
    read_bytes: int
    is_own_count: bool


@dataclass(slots=True)
class _Track:
    points: collections.deque[_Point]
    slope_bytes_per_s: float = 0.0
    at_s: float = 0.0
    own_bytes: int = 0
    shared_gpu_base_bytes: int = -1
    spill_samples: int = 0


def near_cap_bytes(worker: WorkerReading, ratio: float) -> int:
    """The line near a worker's cap: `ratio` of it, but always past the middle between plan and cap.

    A large plan lies above 90 % of its cap, and a worker at its plan is where it should be.
    """
    line = int(worker.cap_own_bytes * ratio)
    if 0 < worker.planned_own_bytes < worker.cap_own_bytes:
        line = max(line, (worker.planned_own_bytes + worker.cap_own_bytes) // 2)
    return line


class Signals:
    """Keeps the last seconds of every figure that only a window can judge."""

    def __init__(self, lines: Lines, *, predict: bool) -> None:
        self._lines = lines
        self._predict = predict
        self._tracks: dict[str, _Track] = {}
        self._psi: collections.deque[tuple[float, float, float]] = collections.deque()
        self._quiet_until_s = float("-inf")

    def slope(self, worker_id: str) -> float:
        """Bytes a second that a worker's own memory grew by, as last seen."""
        track = self._tracks.get(worker_id)
        return track.slope_bytes_per_s if track else 0.0

    def note_still(self, at_s: float) -> None:
        """Nothing has moved up to now, so growth that is seen next began after this."""
        for track in self._tracks.values():
            track.at_s = at_s

    def forget_windows(self) -> None:
        """After a sleep of the machine or of ours: old counters say nothing about now."""
        self._tracks.clear()
        self._psi.clear()

    def ignore_psi(self, until_s: float) -> None:
        """After a kill: its freeing shows as pressure."""
        self._psi.clear()
        self._quiet_until_s = until_s

    def look(self, reading: Reading) -> Look:
        found: list[Signal] = []
        clear = self._machine(reading, found)
        clear &= self._pressure(reading, found)
        alive = {worker.worker_id for worker in reading.workers}
        for gone in self._tracks.keys() - alive:
            del self._tracks[gone]
        for worker in reading.workers:
            track = self._follow(worker, reading)
            if not worker.is_ending:
                clear &= self._cap(worker, track, reading, found)
                clear &= self._swap(worker, track, found)
                clear &= self._thrash(worker, track, reading, found)
                clear &= self._gpu(worker, track, found)
        critical = share(
            self._lines.critical_bytes, self._lines.critical_percent, reading.total_bytes
        )
        return Look(
            tuple(found),
            is_clear=clear and not found,
            is_off_critical=reading.available_bytes >= critical * self._lines.clear_ratio
            and all(signal.level < PressureLevel.CRITICAL for signal in found),
        )

    # -- the machine ------------------------------------------------------------------------------

    def _machine(self, reading: Reading, found: list[Signal]) -> bool:
        lines, total = self._lines, reading.total_bytes
        elevated = share(lines.elevated_bytes, lines.elevated_percent, total)
        critical = share(lines.critical_bytes, lines.critical_percent, total)
        kill = share(lines.kill_bytes, lines.kill_percent, total)
        level, line = PressureLevel.NORMAL, elevated
        if reading.available_bytes < kill:
            level, line = PressureLevel.KILL, kill
        elif reading.available_bytes < critical or reading.is_critical:
            level, line = PressureLevel.CRITICAL, critical
        elif reading.available_bytes < elevated or reading.is_warning:
            level = PressureLevel.ELEVATED
        clear_line = int(elevated * lines.clear_ratio)
        if level is not PressureLevel.NORMAL:
            found.append(
                Signal(
                    level,
                    ExitCause.MACHINE_MEMORY_LOW,
                    sentences.machine_is_low(reading, line),
                    line_bytes=line,
                    needed_bytes=max(clear_line - reading.available_bytes, 1),
                )
            )
        return reading.available_bytes >= clear_line

    def _pressure(self, reading: Reading, found: list[Signal]) -> bool:
        """PSI as a second opinion: only while memory is scarce, and it names no one."""
        lines = self._lines
        if reading.psi_some_s < 0 or reading.at_s < self._quiet_until_s:
            return True
        window = self._psi
        if reading.is_slow:
            window.append((reading.at_s, reading.psi_some_s, reading.psi_full_s))
        while window and window[0][0] < reading.at_s - 2 * lines.psi_window_s - 0.5:
            window.popleft()
        some = self._stalled(reading.at_s, 1)
        share = 100 * reading.available_bytes / max(reading.total_bytes, 1)
        full_now = self._stalled(reading.at_s, 2)
        full_before = self._stalled(reading.at_s - lines.psi_window_s, 2)
        level = PressureLevel.NORMAL
        if share < lines.psi_full_percent and min(full_now, full_before) >= lines.psi_full_s:
            level = PressureLevel.CRITICAL
        elif share < lines.psi_some_percent and some >= lines.psi_some_s:
            level = PressureLevel.ELEVATED
        if level is not PressureLevel.NORMAL:
            sentence = sentences.stalled(reading, max(some, full_now))
            needed = int(reading.total_bytes * lines.psi_some_percent / 100)
            found.append(
                Signal(
                    level,
                    ExitCause.MACHINE_MEMORY_LOW,
                    sentence,
                    line_bytes=int(reading.total_bytes * lines.psi_full_percent / 100),
                    needed_bytes=max(needed - reading.available_bytes, 1),
                )
            )
        return share >= lines.psi_some_percent or some * lines.clear_ratio < lines.psi_some_s

    def _stalled(self, until_s: float, column: int) -> float:
        """Seconds of stall in the window that ends at `until_s`."""
        if not self._psi or self._psi[0][column] == self._psi[-1][column]:
            return 0.0
        inside = [
            point
            for point in self._psi
            if until_s - self._lines.psi_window_s - 0.06 <= point[0] <= until_s
        ]
        return inside[-1][column] - inside[0][column] if inside else 0.0

    # -- one worker -------------------------------------------------------------------------------

    def _follow(self, worker: WorkerReading, reading: Reading) -> _Track:
        track = self._tracks.get(worker.worker_id)
        if track is None:
            track = self._tracks[worker.worker_id] = _Track(collections.deque())
            track.at_s, track.own_bytes = reading.at_s, worker.own_bytes
        elif reading.at_s > track.at_s:
            grown = worker.own_bytes - track.own_bytes
            track.slope_bytes_per_s = grown / (reading.at_s - track.at_s)
            track.at_s, track.own_bytes = reading.at_s, worker.own_bytes
        if reading.is_slow:
            own_count = worker.refault_bytes >= 0
            track.points.append(
                _Point(
                    reading.at_s,
                    worker.own_bytes,
                    worker.own_bytes + worker.mapped_bytes,
                    worker.swap_bytes,
                    worker.refault_bytes if own_count else reading.refault_bytes,
                    worker.read_bytes,
                    own_count,
                )
            )
        while track.points and track.points[0].at_s < reading.at_s - SWAP_WINDOW_S:
            track.points.popleft()
        return track

    def _cap(
        self, worker: WorkerReading, track: _Track, reading: Reading, found: list[Signal]
    ) -> bool:
        if not worker.cap_own_bytes:
            return True
        lines = self._lines
        expected = worker.own_bytes
        # Below its plan a worker may grow as fast as it likes: loading is not running away.
        if self._predict and worker.own_bytes > worker.planned_own_bytes:
            lookahead_s = min(reading.period_s, lines.period_busy_s) + lines.lookahead_margin_s
            expected += int(max(track.slope_bytes_per_s, 0.0) * lookahead_s)
        near = near_cap_bytes(worker, lines.near_cap_ratio)
        level = PressureLevel.NORMAL
        if expected >= worker.cap_own_bytes:
            level, line = PressureLevel.KILL, worker.cap_own_bytes
        elif worker.own_bytes >= near:
            level, line = PressureLevel.ELEVATED, near
        if level is not PressureLevel.NORMAL:
            found.append(
                Signal(
                    level,
                    ExitCause.CAP_EXCEEDED,
                    sentences.cap_exceeded(worker, expected)
                    if level is PressureLevel.KILL
                    else sentences.near_cap(worker),
                    worker.worker_id,
                    line_bytes=line,
                    needed_bytes=max(worker.own_bytes - near, 1),
                )
            )
        return worker.own_bytes < max(near / lines.clear_ratio, _clear_of_cap(worker))

    def _swap(self, worker: WorkerReading, track: _Track, found: list[Signal]) -> bool:
        """What went to swap lately: pages that have been there for long harm no one."""
        if not worker.swap_bytes:
            return True
        least = min((point.swap_bytes for point in track.points), default=worker.swap_bytes)
        grown = worker.swap_bytes - least
        if grown < self._lines.swap_elevated_bytes:
            return True
        is_much = grown >= self._lines.swap_critical_bytes
        found.append(
            Signal(
                PressureLevel.CRITICAL if is_much else PressureLevel.ELEVATED,
                ExitCause.SWAPPING,
                sentences.swapping(worker),
                worker.worker_id,
                line_bytes=self._lines.swap_critical_bytes,
                needed_bytes=worker.swap_bytes,
            )
        )
        return False

    def _thrash(
        self, worker: WorkerReading, track: _Track, reading: Reading, found: list[Signal]
    ) -> bool:
        """Weights that are read again and again: what was read again, less what stayed."""
        lines = self._lines
        short = self._wasted(track, reading.at_s, lines.refault_elevated_s)
        long = self._wasted(track, reading.at_s, lines.refault_critical_s)
        level = PressureLevel.NORMAL
        if long >= lines.refault_critical_bytes_per_s:
            level = PressureLevel.CRITICAL
        elif short >= lines.refault_elevated_bytes_per_s:
            level = PressureLevel.ELEVATED
        if level is not PressureLevel.NORMAL:
            found.append(
                Signal(
                    level,
                    ExitCause.THRASHING,
                    sentences.thrashing(worker, max(short, long)),
                    worker.worker_id,
                    line_bytes=int(lines.refault_critical_bytes_per_s),
                    needed_bytes=max(worker.planned_mapped_bytes - worker.mapped_bytes, 1),
                )
            )
        return short * lines.clear_ratio < lines.refault_elevated_bytes_per_s

    def _wasted(self, track: _Track, at_s: float, window_s: float) -> float:
        """Bytes a second that the worker read again without holding more; 0 where unknown."""
        # The usual case is cheap: nothing was read again in all the seconds that are kept.
        if not track.points or track.points[0].refault_bytes == track.points[-1].refault_bytes:
            return 0.0
        inside = [point for point in track.points if point.at_s >= at_s - window_s - 0.03]
        if len(inside) < 2 or inside[-1].at_s - inside[0].at_s < window_s * _CUT_SHORT:
            return 0.0
        first, last = inside[0], inside[-1]
        if first.refault_bytes < 0 or first.is_own_count != last.is_own_count:
            return 0.0
        again = last.refault_bytes - first.refault_bytes
        if not last.is_own_count:
            # The machine's count has no owner: the worker must have read its share itself.
            if first.read_bytes < 0:
                return 0.0
            read = last.read_bytes - first.read_bytes
            if read < again * self._lines.refault_share:
                return 0.0
            again = min(again, read)
        kept = max(last.held_bytes - first.held_bytes, 0)
        return max(again - kept, 0) / (last.at_s - first.at_s)

    def _gpu(self, worker: WorkerReading, track: _Track, found: list[Signal]) -> bool:
        lines = self._lines
        for device, taken in worker.gpu_bytes.items():
            cap = worker.gpu_cap_bytes.get(device, 0)
            if cap and taken >= cap:
                found.append(
                    Signal(
                        PressureLevel.CRITICAL,
                        ExitCause.GPU_MEMORY,
                        sentences.gpu_over(worker, device, taken, cap),
                        worker.worker_id,
                        line_bytes=cap,
                        needed_bytes=taken - cap + 1,
                    )
                )
        shared = worker.shared_gpu_bytes
        if track.shared_gpu_base_bytes < 0 or worker.is_loading:
            track.shared_gpu_base_bytes = shared
        grown = shared - track.shared_gpu_base_bytes
        if grown <= lines.gpu_shared_bytes:
            track.spill_samples = 0
            return grown * lines.clear_ratio <= lines.gpu_shared_bytes
        is_full = 0 <= worker.gpu_free_bytes <= lines.gpu_full_bytes
        track.spill_samples = track.spill_samples + 1 if is_full else 0
        is_spilling = track.spill_samples >= lines.gpu_samples
        found.append(
            Signal(
                PressureLevel.CRITICAL if is_spilling else PressureLevel.ELEVATED,
                ExitCause.GPU_MEMORY,
                sentences.spilling(worker, grown),
                worker.worker_id,
                line_bytes=lines.gpu_shared_bytes,
                needed_bytes=grown,
            )
        )
        return False


def _clear_of_cap(worker: WorkerReading) -> int:
    """A quarter of the way from plan to cap: where a worker at its plan is clear."""
    if 0 < worker.planned_own_bytes < worker.cap_own_bytes:
        return worker.planned_own_bytes + (worker.cap_own_bytes - worker.planned_own_bytes) // 4
    return 0
