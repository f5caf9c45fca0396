"""The guard's loop: wait, sample, decide, act. The guard process has no other thread.

It is started by `__main__`, talks to the app over the link, and is the parent of every worker. It
never blocks but in `wait`: sending keeps what does not go, the start of a worker is followed through
a pipe, and slow readings come from a process of their own. It outlives nothing: when the link closes
it ends every worker and returns.
"""

import collections
import os
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from app.core.lifecycle import ExitCause
from app.guard import cadence, sentences
from app.guard.causes import KillRecord, name_cause
from app.guard.child import Child, ExitStatus, Sampler, Spawner, SpawnFailed
from app.guard.link import GuardLink, LinkClosed, Packet, close_descriptors
from app.guard.options import GuardOptions
from app.guard.policy import Policy
from app.guard.protocol import (
    HEARTBEAT_S,
    Activity,
    CapReport,
    Closing,
    Done,
    Evidence,
    Exited,
    Heartbeat,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Ready,
    Samples,
    ToApp,
    ToGuard,
    Verdict,
    WorkerSample,
    decode_to_guard,
    encode,
)
from app.guard.reader import NO_READER, SlowReader
from app.guard.readings import Action, Reading, WorkerReading

SLOW_S = 0.05
"""Pressure, refaults and read bytes are not read more often than this."""
SAMPLES_S = 0.25
HISTORY_S = 5.0
LAUNCH_DEADLINE_S = 15.0
"""From the fork to the engine's first instruction; a stuck system bus costs at most this."""
END_DEADLINE_S = 5.0
OOM_MEMORY_S = 2.0
"""A process with gigabytes to free is reaped up to this long after the kernel counted its kill."""


@dataclass(slots=True)
class _Worker:
    child: Child
    launch: Launch
    started_s: float
    is_launched: bool = False
    activity: Activity | None = None
    record: KillRecord | None = None
    killed_s: float = 0.0
    peak_bytes: int = 0
    last: WorkerReading | None = None
    history: collections.deque[WorkerSample] = field(default_factory=collections.deque)


class Watchdog:
    """Owns the workers. Thread: the guard's main thread."""

    def __init__(
        self,
        link: GuardLink,
        spawner: Spawner,
        sampler: Sampler,
        options: GuardOptions,
        reader: SlowReader = NO_READER,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._spawner = spawner
        self._sampler = sampler
        self._options = options
        self._reader = reader
        self._now = now
        self._policy = Policy(options.lines, predict=options.predict)
        self._workers: dict[str, _Worker] = {}
        self._verdicts = 0
        self._last_reading: Reading | None = None
        self._slow_s = self._samples_s = self._heartbeat_s = float("-inf")
        self._oom_counts: collections.deque[tuple[float, int]] = collections.deque()
        self._is_closing = False

    def run(self) -> None:
        """Until the app closes the link or says so; ends with no worker alive."""
        expected = self._spawner.expected_cap()
        try:
            self._send(Ready(os.getpid(), expected.kind, list(expected.tried)))
            next_sample_s = self._now()
            while not self._is_closing:
                timeout_s = next_sample_s - self._now()
                handles = self._handles()
                ready = self._link.wait(timeout_s, handles) if timeout_s > 0 else frozenset()
                if ready or timeout_s <= 0:
                    self._link.flush()
                    for packet in self._link.receive():
                        self._take(packet)
                self._follow_children()
                if self._now() >= next_sample_s or self._is_new():
                    period_s = self._sample()
                    next_sample_s = self._now() + period_s
        except LinkClosed:
            self._end_all(ExitCause.APP_GONE, "The app is gone.")
            return
        self._end_all(ExitCause.STOPPED_BY_USER, "Coolhead is closing.")

    def _is_new(self) -> bool:
        return any(worker.last is None for worker in self._workers.values())

    def _handles(self) -> list[int]:
        handles: list[int] = []
        for worker in self._workers.values():
            handles.append(worker.child.handle)
            if worker.child.report >= 0:
                handles.append(worker.child.report)
        return handles

    # -- messages ---------------------------------------------------------------------------------

    def _send(
        self, message: ToApp, handles: tuple[int, ...] = (), *, may_drop: bool = False
    ) -> None:
        self._link.send(encode(message), handles, may_drop=may_drop)

    def _take(self, packet: Packet) -> None:
        try:
            message: ToGuard = decode_to_guard(packet.data)
        except msgspec.DecodeError as error:
            log(f"a packet that is no message: {error}")
            close_descriptors(packet.descriptors)
            return
        if isinstance(message, Launch):
            self._launch(message, packet)
            return
        close_descriptors(packet.descriptors)
        if isinstance(message, Kill):
            worker = self._workers.get(message.worker_id)
            if worker is not None:
                model = model_name(worker)
                sentence = message.note or f"{model} was stopped ({message.cause})."
                self._kill(worker, KillRecord(message.cause, sentence))
        elif isinstance(message, Activity):
            worker = self._workers.get(message.worker_id)
            if worker is not None:
                worker.activity = message
        elif isinstance(message, Done):
            self._policy_done(message)
        elif isinstance(message, Closing):
            self._is_closing = True

    def _policy_done(self, message: Done) -> None:
        log(f"verdict {message.verdict_id}: {'done' if message.ok else 'not done'} {message.note}")

    # -- starting ---------------------------------------------------------------------------------

    def _launch(self, launch: Launch, packet: Packet) -> None:
        try:
            if launch.worker_id in self._workers:
                raise SpawnFailed(f"A worker called {launch.worker_id} runs already.")
            if len(packet.descriptors) != 3:
                raise SpawnFailed("The worker's stdin, stdout and stderr did not arrive.")
            stdin, stdout, stderr = packet.descriptors
            child = self._spawner.spawn(launch, (stdin, stdout, stderr))
        except SpawnFailed as reason:
            self._send(LaunchFailed(launch.worker_id, str(reason)))
        else:
            self._workers[launch.worker_id] = _Worker(child, launch, self._now())
            self._sampler.watch(child)
        finally:
            close_descriptors(packet.descriptors)

    def _follow_children(self) -> None:
        for worker in list(self._workers.values()):
            child = worker.child
            if not worker.is_launched:
                self._follow_launch(worker)
            status = self._spawner.reap(child)
            if status is not None:
                self._ended(worker, status)

    def _follow_launch(self, worker: _Worker) -> None:
        child = worker.child
        if child.report >= 0 and not self._spawner.poll_report(child):
            if self._now() - worker.started_s > LAUNCH_DEADLINE_S and worker.record is None:
                child.failure = f"It was not placed under its cap within {LAUNCH_DEADLINE_S:.0f} s."
                self._kill(worker, KillRecord(ExitCause.EXITED, child.failure))
            return
        if child.failure or child.held is None:
            return  # told when it is reaped
        worker.is_launched = True
        self._sampler.watch(child)
        cap = CapReport(
            kind=child.held.kind,
            limit_bytes=child.held.limit_bytes,
            swap_forbidden=child.held.swap_forbidden,
            tried=list(child.held.tried),
        )
        launched = Launched(child.worker_id, child.pid, child.start_time, cap)
        self._send(launched, self._spawner.handle_to_send(child))

    # -- ending -----------------------------------------------------------------------------------

    def _kill(self, worker: _Worker, record: KillRecord) -> None:
        if worker.record is None:
            oom_kills = self._spawner.oom_kills(worker.child)
            worker.record = replace(record, oom_kills=oom_kills)
            worker.killed_s = self._now()
        self._spawner.kill(worker.child, release=len(self._workers) == 1)

    def _ended(self, worker: _Worker, status: ExitStatus) -> None:
        child = worker.child
        del self._workers[child.worker_id]
        self._sampler.forget(child.worker_id)
        if not worker.is_launched:
            reason = child.failure or "it ended before its engine was started"
            self._send(LaunchFailed(child.worker_id, f"The worker did not start: {reason}"))
            return
        machine = self._sampler.machine(slow=True)
        before = self._oom_counts[0][1] if self._oom_counts else -1
        delta = max(machine.oom_kills - before, 0) if before >= 0 else 0
        record = worker.record
        found = name_cause(record, status, delta)
        limit = child.held.limit_bytes if child.held else 0
        if record is not None and found.cause is record.cause:
            sentence = record.sentence
        else:
            sentence = sentences.exited(model_name(worker), found.cause, status, found.note, limit)
        last = worker.last
        self._send(
            Exited(
                worker_id=child.worker_id,
                pid=child.pid,
                cause=found.cause,
                sentence=sentence,
                evidence=Evidence(
                    own_bytes=last.own_bytes if last else 0,
                    own_peak_bytes=worker.peak_bytes,
                    mapped_bytes=last.mapped_bytes if last else 0,
                    swap_bytes=last.swap_bytes if last else 0,
                    cap_bytes=worker.launch.caps.own_bytes,
                    kernel_limit_bytes=limit,
                    available_bytes=machine.available_bytes,
                    total_bytes=machine.total_bytes,
                    line_bytes=record.line_bytes if record else 0,
                    exit_code=status.exit_code,
                    exit_signal=status.exit_signal,
                    kernel_oom_kills=max(status.group_oom_kills, delta, 0),
                    note=found.note,
                ),
                samples=list(worker.history),
            )
        )

    def _end_all(self, cause: ExitCause, note: str) -> None:
        """Kills and reaps everything; bounded, as a worker in the kernel's hands may take a while."""
        deadline_s = self._now() + END_DEADLINE_S
        for worker in self._workers.values():
            self._kill(worker, KillRecord(cause, f"{model_name(worker)} was stopped. {note}"))
        while self._workers and self._now() < deadline_s:
            for worker in list(self._workers.values()):
                status = self._spawner.reap(worker.child)
                if status is not None:
                    try:
                        self._ended(worker, status)
                    except LinkClosed:
                        continue
            self._link.wait_handles(0.02, self._handles())
        self._spawner.close()

    # -- sampling ---------------------------------------------------------------------------------

    def _sample(self) -> float:
        """One look, one decision; returns the time until the next."""
        at_s = self._now()
        is_slow = at_s - self._slow_s >= SLOW_S * 0.9
        if is_slow:
            self._slow_s = at_s
        reading = self._read(at_s, is_slow=is_slow)
        if self._options.watch:
            for action in self._policy.step(reading):
                self._carry_out(action)
        self._last_reading = reading
        fastest = max((self._policy.slope(one.worker_id) for one in reading.workers), default=0.0)
        self._report(reading)
        return cadence.period_s(self._options.lines, reading, fastest)

    def _read(self, at_s: float, *, is_slow: bool) -> Reading:
        machine = self._sampler.machine(slow=is_slow)
        if is_slow:
            self._oom_counts.append((at_s, machine.oom_kills))
            while self._oom_counts[0][0] < at_s - OOM_MEMORY_S:
                self._oom_counts.popleft()
        readings: list[WorkerReading] = []
        for worker in self._workers.values():
            memory = self._sampler.worker(worker.child.worker_id, slow=is_slow)
            if memory is None:
                if worker.last is None:
                    worker.last = WorkerReading(worker.child.worker_id, worker.launch.model_id, 0)
                continue
            activity = worker.activity
            caps = worker.launch.caps
            one = WorkerReading(
                worker_id=worker.child.worker_id,
                model_id=worker.launch.model_id,
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
                gpu_cap_bytes=caps.gpu_bytes,
                is_ending=worker.record is not None,
            )
            worker.last = one
            worker.peak_bytes = max(worker.peak_bytes, one.own_bytes)
            worker.history.append(
                WorkerSample(
                    worker_id=one.worker_id,
                    at_s=at_s,
                    own_bytes=one.own_bytes,
                    mapped_bytes=one.mapped_bytes,
                    swap_bytes=one.swap_bytes,
                    resident_bytes=one.resident_bytes,
                )
            )
            while worker.history[0].at_s < at_s - HISTORY_S:
                worker.history.popleft()
            readings.append(one)
        period_s = at_s - self._last_reading.at_s if self._last_reading else 0.0
        return Reading(
            at_s=at_s,
            period_s=min(period_s, self._options.lines.period_busy_s),
            available_bytes=machine.available_bytes,
            total_bytes=machine.total_bytes,
            workers=tuple(readings),
            swap_used_bytes=machine.swap_used_bytes,
            psi_some_s=machine.psi_some_s,
            psi_full_s=machine.psi_full_s,
            refault_bytes=machine.refault_bytes,
            is_slow=is_slow,
            is_warning=machine.is_warning,
            is_critical=machine.is_critical,
        )

    def _carry_out(self, action: Action) -> None:
        if action.step == "kill":
            worker = self._workers.get(action.worker_id)
            if worker is None or worker.record is not None or action.cause is None:
                return
            self._kill(
                worker, KillRecord(action.cause, action.sentence, line_bytes=action.line_bytes)
            )
        self._verdicts += 1
        self._send(
            Verdict(
                verdict_id=self._verdicts,
                level=action.level,
                step="killed" if action.step == "kill" else action.step,
                cause=action.cause,
                sentence=action.sentence,
                worker_id=action.worker_id,
                needed_bytes=action.needed_bytes,
                deadline_s=action.deadline_s,
            )
        )

    def _report(self, reading: Reading) -> None:
        if reading.at_s - self._heartbeat_s >= HEARTBEAT_S * 0.9:
            self._heartbeat_s = reading.at_s
            self._send(Heartbeat(reading.at_s), may_drop=True)
        if not reading.workers or reading.at_s - self._samples_s < SAMPLES_S * 0.9:
            return
        self._samples_s = reading.at_s
        self._send(
            Samples(
                at_s=reading.at_s,
                available_bytes=reading.available_bytes,
                total_bytes=reading.total_bytes,
                swap_used_bytes=reading.swap_used_bytes,
                level=self._policy.level,
                workers=[worker.history[-1] for worker in self._workers.values() if worker.history],
            ),
            may_drop=True,
        )


def model_name(worker: _Worker) -> str:
    return worker.launch.model_id or worker.launch.worker_id


def log(text: str) -> None:
    """To stderr, which the client reads; a client that is gone is no reason to fail."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return


def log_exception() -> None:
    log(traceback.format_exc())
