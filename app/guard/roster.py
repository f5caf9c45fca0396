"""The workers that the guard has: what was asked for, what was seen of them, how they ended.

Used by the watchdog's loop only; it has no handle on any process itself.
"""

import collections
from dataclasses import dataclass, field, replace

from app.core.lifecycle import CapKind
from app.guard import sentences
from app.guard.causes import KillRecord, name_cause
from app.guard.census import KEPT_S
from app.guard.child import Child, ExitStatus, MachineMemory, WorkerMemory
from app.guard.protocol import Activity, CapReport, Evidence, Exited, Launch, WorkerSample
from app.guard.reader import SlowReading
from app.guard.readings import WorkerReading

HISTORY_S = 5.0


@dataclass(slots=True)
class RosterEntry:
    """One worker from its fork to its end. `record` is set once, by whoever ends it."""

    child: Child
    launch: Launch
    started_s: float
    is_launched: bool = False
    activity: Activity | None = None
    record: KillRecord | None = None
    peak_bytes: int = 0
    last: WorkerReading | None = None
    history: collections.deque[WorkerSample] = field(default_factory=collections.deque)

    @property
    def worker_id(self) -> str:
        return self.child.worker_id

    @property
    def name(self) -> str:
        """What people call it."""
        return self.launch.model_id or self.launch.worker_id

    @property
    def cap_report(self) -> CapReport:
        """What holds it, once that is known."""
        held = self.child.held
        if held is None:
            return CapReport(CapKind.WATCH_ONLY, 0, swap_forbidden=False)
        return CapReport(held.kind, held.limit_bytes, held.swap_forbidden, list(held.tried))

    def see(self, memory: WorkerMemory, slow: SlowReading, at_s: float) -> WorkerReading:
        """Notes a look at its memory and returns what the policy gets."""
        caps, activity, pid = self.launch.caps, self.activity, self.child.pid
        gpu = {one.device: one.by_pid[pid] for one in slow.gpus if pid in one.by_pid}
        free = [one.free_bytes for one in slow.gpus if pid in one.by_pid]
        reading = WorkerReading(
            worker_id=self.worker_id,
            model_id=self.launch.model_id,
            own_bytes=memory.own_bytes,
            mapped_bytes=memory.mapped_bytes,
            swap_bytes=memory.swap_bytes,
            resident_bytes=memory.resident_bytes,
            planned_own_bytes=caps.planned_own_bytes,
            cap_own_bytes=caps.own_bytes,
            planned_mapped_bytes=caps.mapped_bytes,
            read_bytes=memory.read_bytes,
            refault_bytes=memory.refault_bytes,
            is_loading=activity.is_loading if activity else False,
            in_flight=activity.in_flight if activity else -1,
            last_used_s=activity.last_used_s if activity else 0.0,
            gpu_bytes=gpu,
            gpu_cap_bytes=caps.gpu_bytes,
            shared_gpu_bytes=sum(one.shared_by_pid.get(pid, 0) for one in slow.gpus),
            gpu_free_bytes=min(free, default=-1),
            is_ending=self.record is not None,
            grown_bytes=memory.own_bytes if at_s - self.started_s < KEPT_S else 0,
        )
        self.last = reading
        self.peak_bytes = max(self.peak_bytes, reading.own_bytes)
        self.history.append(
            WorkerSample(
                worker_id=reading.worker_id,
                at_s=at_s,
                own_bytes=reading.own_bytes,
                mapped_bytes=reading.mapped_bytes,
                swap_bytes=reading.swap_bytes,
                resident_bytes=reading.resident_bytes,
                gpu_bytes=gpu,
            )
        )
        while self.history[0].at_s < at_s - HISTORY_S:
            self.history.popleft()
        return reading

    def end(self, record: KillRecord, oom_kills: int, at_s: float) -> None:
        """Notes why we end it; the first reason stays."""
        if self.record is None:
            self.record = replace(record, oom_kills=oom_kills, at_s=at_s)

    def exited(
        self, status: ExitStatus, machine: MachineMemory, machine_oom_kills_delta: int
    ) -> Exited:
        """The report of its end, with the cause by evidence."""
        record, last = self.record, self.last
        found = name_cause(record, status, machine_oom_kills_delta)
        limit_bytes = self.cap_report.limit_bytes
        if record is not None and found.cause is record.cause:
            sentence = record.sentence
        else:
            sentence = sentences.exited(self.name, found.cause, status, found.note, limit_bytes)
        return Exited(
            worker_id=self.worker_id,
            pid=self.child.pid,
            cause=found.cause,
            sentence=sentence,
            evidence=Evidence(
                own_bytes=last.own_bytes if last else 0,
                own_peak_bytes=self.peak_bytes,
                mapped_bytes=last.mapped_bytes if last else 0,
                swap_bytes=last.swap_bytes if last else 0,
                cap_bytes=self.launch.caps.own_bytes,
                kernel_limit_bytes=limit_bytes,
                available_bytes=machine.available_bytes,
                total_bytes=machine.total_bytes,
                line_bytes=record.line_bytes if record else 0,
                exit_code=status.exit_code,
                exit_signal=status.exit_signal,
                kernel_oom_kills=max(status.group_oom_kills, machine_oom_kills_delta, 0),
                killed_at_s=record.at_s if record else 0.0,
                note=found.note,
            ),
            samples=list(self.history),
        )
