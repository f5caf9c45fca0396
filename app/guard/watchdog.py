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
from dataclasses import replace

import msgspec

from app.core.lifecycle import ExitCause
from app.guard import cadence, sentences
from app.guard.causes import KillRecord
from app.guard.child import ExitStatus, Sampler, Spawner, SpawnFailed
from app.guard.link import LINK_READY, GuardLink, LinkClosed, Packet, close_descriptors
from app.guard.options import GuardOptions
from app.guard.policy import Policy
from app.guard.protocol import (
    HEARTBEAT_S,
    Activity,
    Closing,
    Done,
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
    decode_to_guard,
    encode,
)
from app.guard.reader import NO_READER, STALE_S, SlowReader
from app.guard.readings import Action, Reading, WorkerReading
from app.guard.roster import RosterEntry

SLOW_S = 0.15
"""Pressure, refaults and read bytes are not read more often: their windows are 300 ms and longer."""
SLOW_IDLE_S = 2.0
SAMPLES_S = 0.25
SAMPLES_IDLE_S = 2.0
LAUNCH_DEADLINE_S = 15.0
"""From the fork to the engine's first instruction; a stuck system bus costs at most this."""
END_DEADLINE_S = 5.0
OOM_MEMORY_S = 2.0
"""A process with gigabytes to free is reaped up to this long after the kernel counted its kill."""
STILL_MACHINE_BYTES = 128 * 1024 * 1024
STILL_WORKER_BYTES = 1024 * 1024
VERDICTS_KEPT = 64
LATE_BY = 0.9
"""Periods are met a little early or late: what is due at 90 % is done now."""


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
        self._workers: dict[str, RosterEntry] = {}
        self._verdicts: collections.deque[Verdict] = collections.deque(maxlen=VERDICTS_KEPT)
        self._verdict_count = 0
        self._period_s = 0.0
        self._last_reading: Reading | None = None
        self._next_sample_s = now()
        self._slow_s = self._samples_s = self._heartbeat_s = float("-inf")
        self._oom_counts: collections.deque[tuple[float, int]] = collections.deque()
        self._is_closing = False

    def run(self) -> None:
        """Until the app closes the link or says so; ends with no worker alive."""
        expected = self._spawner.expected_cap()
        try:
            self._send(Ready(os.getpid(), expected.kind, list(expected.tried)))
            while not self._is_closing:
                self.turn()
        except LinkClosed:
            self._end_all(ExitCause.APP_GONE, "The app is gone.")
            return
        self._end_all(ExitCause.STOPPED_BY_USER, "Coolhead is closing.")

    def turn(self) -> None:
        """One round of the loop.

        Raises:
            LinkClosed: when the app is gone.
        """
        ready = self._link.wait(self._next_sample_s - self._now(), self._handles())
        self._link.flush()
        if LINK_READY in ready:
            for packet in self._link.receive():
                self._take(packet)
        at_s = self._now()
        is_due = at_s >= self._next_sample_s
        looks_at_all = is_due and self._is_slow_due(at_s)
        for worker in list(self._workers.values()):
            # A handle says when its worker has ended; asking each of them every time costs more.
            if looks_at_all or not worker.is_launched or worker.child.handle in ready:
                self._follow(worker)
        if is_due:
            self._sample()
            self._next_sample_s = self._now() + self._period_s

    @property
    def _is_idle(self) -> bool:
        lines = self._options.lines
        return self._period_s >= lines.period_idle_s and self._policy.level == 0

    def _is_slow_due(self, at_s: float) -> bool:
        slow_s = SLOW_IDLE_S if self._is_idle else SLOW_S
        return at_s - self._slow_s >= slow_s * LATE_BY

    def _handles(self) -> list[int]:
        children = [worker.child for worker in self._workers.values()]
        return [child.handle for child in children] + [
            child.report for child in children if child.report >= 0
        ]

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
        if isinstance(message, Kill) and message.worker_id in self._workers:
            worker = self._workers[message.worker_id]
            sentence = message.note or sentences.asked_to_stop(worker.name, message.cause)
            self._kill(worker, KillRecord(message.cause, sentence))
        elif isinstance(message, Activity) and message.worker_id in self._workers:
            self._workers[message.worker_id].activity = message
            # A worker that starts to work is looked at now, not when its idle period is over.
            period_s = self._options.lines.period_busy_s
            self._next_sample_s = min(self._next_sample_s, self._now() + period_s)
        elif isinstance(message, Done):
            for verdict in self._verdicts:
                if verdict.verdict_id == message.verdict_id:
                    self._policy.done(verdict.step, verdict.worker_id, self._now(), ok=message.ok)
        elif isinstance(message, Closing):
            self._is_closing = True

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
            self._workers[launch.worker_id] = RosterEntry(child, launch, self._now())
            self._sampler.watch(child)
            self._next_sample_s = self._now()
        finally:
            close_descriptors(packet.descriptors)

    def _follow(self, worker: RosterEntry) -> None:
        if not worker.is_launched:
            self._follow_launch(worker)
        status = self._spawner.reap(worker.child)
        if status is not None:
            self._ended(worker, status)

    def _follow_launch(self, worker: RosterEntry) -> None:
        child = worker.child
        if child.report >= 0 and not self._spawner.poll_report(child):
            if self._now() - worker.started_s > LAUNCH_DEADLINE_S and worker.record is None:
                child.failure = f"it was not placed under its cap within {LAUNCH_DEADLINE_S:.0f} s"
                self._kill(worker, KillRecord(ExitCause.EXITED, child.failure))
            return
        if child.failure or child.held is None:
            return  # told when it is reaped
        worker.is_launched = True
        self._sampler.watch(child)  # again, as its group is known now
        launched = Launched(child.worker_id, child.pid, child.start_time, worker.cap_report)
        self._send(launched, self._spawner.handle_to_send(child))

    # -- ending -----------------------------------------------------------------------------------

    def _kill(self, worker: RosterEntry, record: KillRecord) -> None:
        worker.end(record, self._spawner.oom_kills(worker.child), self._now())
        # Freeing its memory for it takes our time, in which no one else is watched.
        self._spawner.kill(worker.child, release=len(self._workers) == 1)

    def _ended(self, worker: RosterEntry, status: ExitStatus) -> None:
        del self._workers[worker.worker_id]
        self._sampler.forget(worker.worker_id)
        if not worker.is_launched:
            reason = worker.child.failure or "it ended before its engine was started"
            self._send(LaunchFailed(worker.worker_id, f"The worker did not start: {reason}."))
            return
        machine = self._sampler.machine(slow=True)
        before = self._oom_counts[0][1] if self._oom_counts else -1
        delta = max(machine.oom_kills - before, 0) if before >= 0 else 0
        exited = worker.exited(status, machine, delta)
        self._send(exited)
        if worker.record is None and exited.cause.is_memory:
            now_s = self._now()
            for action in self._policy.note_end(exited.cause, worker.worker_id, now_s):
                self._carry_out(action)

    def _end_all(self, cause: ExitCause, note: str) -> None:
        """Kills and reaps everything; bounded, as the kernel may take a while over a worker."""
        deadline_s = self._now() + END_DEADLINE_S
        for worker in self._workers.values():
            self._kill(worker, KillRecord(cause, f"{worker.name} was stopped. {note}"))
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

    def _sample(self) -> None:
        """One look, one decision, and the time until the next."""
        at_s = self._now()
        is_slow = self._is_slow_due(at_s)
        if is_slow:
            self._slow_s = at_s
        elif self._policy.level == 0 and self._is_still():
            self._policy.note_still(at_s)
            return
        reading = self._last_reading = self._read(at_s, is_slow=is_slow)
        if self._options.watch:
            for action in self._policy.step(reading):
                self._carry_out(action)
        fastest = max((self._policy.slope(one.worker_id) for one in reading.workers), default=0.0)
        self._period_s = cadence.period_s(self._options.lines, reading, fastest)
        self._report(reading)

    def _is_still(self) -> bool:
        """Between two full looks, one small read a worker shows that nothing moves: that is enough."""
        last = self._last_reading
        if last is None or len(last.workers) != len(self._workers):
            return False
        moved = self._sampler.available_bytes() - last.available_bytes
        if abs(moved) > STILL_MACHINE_BYTES:
            return False
        for before in last.workers:
            memory = self._sampler.worker(before.worker_id, slow=False)
            if memory is None or memory.swap_bytes != before.swap_bytes:
                return False
            if abs(memory.own_bytes - before.own_bytes) > STILL_WORKER_BYTES:
                return False
        return True

    def _read(self, at_s: float, *, is_slow: bool) -> Reading:
        machine = self._sampler.machine(slow=is_slow)
        if is_slow:
            self._oom_counts.append((at_s, machine.oom_kills))
            while self._oom_counts[0][0] < at_s - OOM_MEMORY_S:
                self._oom_counts.popleft()
        workers = self._workers.values()
        self._reader.want(
            at_s,
            tuple(worker.child.pid for worker in workers),
            on_gpu=any(worker.launch.caps.gpu_bytes for worker in workers),
            is_pressed=self._policy.level > 0,
        )
        slow = self._reader.latest()
        if at_s - slow.at_s > STALE_S:
            slow = replace(slow, gpus=())
        readings: list[WorkerReading] = []
        for worker in workers:
            memory = self._sampler.worker(worker.worker_id, slow=is_slow)
            if memory is not None:
                readings.append(worker.see(memory, slow, at_s))
        return Reading(
            at_s=at_s,
            period_s=self._period_s,
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
            grown_program=slow.grown_program,
            grown_bytes=slow.grown_bytes,
        )

    def _carry_out(self, action: Action) -> None:
        step = action.step
        if step == "kill" and action.cause is not None:
            step = "killed"
            record = KillRecord(action.cause, action.sentence, line_bytes=action.line_bytes)
            self._kill(self._workers[action.worker_id], record)
        self._verdict_count += 1
        verdict = Verdict(
            verdict_id=self._verdict_count,
            level=action.level,
            step=step,
            cause=action.cause,
            sentence=action.sentence,
            worker_id=action.worker_id,
            needed_bytes=action.needed_bytes,
            deadline_s=action.deadline_s,
            kills_in_window=self._policy.kills_in_window,
        )
        self._verdicts.append(verdict)
        self._send(verdict)

    def _report(self, reading: Reading) -> None:
        if reading.at_s - self._heartbeat_s >= HEARTBEAT_S * LATE_BY:
            self._heartbeat_s = reading.at_s
            self._send(Heartbeat(reading.at_s), may_drop=True)
        samples_s = SAMPLES_IDLE_S if self._is_idle else SAMPLES_S
        if not reading.workers or reading.at_s - self._samples_s < samples_s * LATE_BY:
            return
        self._samples_s = reading.at_s
        samples = Samples(
            at_s=reading.at_s,
            available_bytes=reading.available_bytes,
            total_bytes=reading.total_bytes,
            swap_used_bytes=reading.swap_used_bytes,
            level=self._policy.level,
            workers=[one.history[-1] for one in self._workers.values() if one.history],
        )
        self._send(samples, may_drop=True)


def log(text: str) -> None:
    """To stderr, which the client reads; a client that is gone is no reason to fail."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        return


def log_exception() -> None:
    log(traceback.format_exc())
