"""One worker: a model's engine process from its launch to its exit, as one state machine.

Made, started and stopped by the supervisor, on the core loop, which is the one writer of its state.
The guard is the process's parent: it says how the process ended; here are its pipes, its ready line,
its log and what it was started with. A worker is started once and never again.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.core.backends import engine_http
from app.core.backends.base import Capabilities, LaunchPlan
from app.core.backends.engines.link import FailedLine, ReadyLine, parse_answer
from app.core.backends.guard_link import GuardLink
from app.core.backends.log_ring import LogRing, PipeReader
from app.core.errors import GuardError, WorkerStartFailed, WorkerStopped
from app.core.lifecycle import WORKER_TRANSITIONS, ExitCause, WorkerState
from app.guard.client import refine
from app.guard.protocol import CapReport, Evidence, Exited, Launch, WorkerSample

_log = logging.getLogger(__name__)

PROBE_FIRST_S = 0.02
PROBE_LAST_S = 0.25
STALL_LOOK_S = 0.5
EXIT_DEADLINE_S = 10.0
"""From a kill to the guard's word that the process is reaped: 100 ms a GiB were measured."""

ACTIVITY_S = 0.25
"""The guard needs to know at once of work that begins, of the rest a few times a second."""


@dataclass(frozen=True, slots=True)
class ReadyWorker:
    """Where a model answers, for the dispatcher. `context_tokens` is per slot.

    `generation` rises with each worker of the model.
    """

    model_id: str
    worker_id: str
    host: str
    port: int
    key: str = field(repr=False)
    context_tokens: int
    slots: int
    capabilities: Capabilities
    generation: int


class Worker:
    """Thread: core loop.

    Args:
        on_change: told of every change of state, after it; and of load progress in `STARTING`.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        generation: int,
        on_change: Callable[["Worker", str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.generation = generation
        self.worker_id = f"{plan.model_id}:{generation}"
        self.log = LogRing()
        self.pid = 0
        self.cap: CapReport | None = None
        self.ready: ReadyWorker | None = None
        self.sample: WorkerSample | None = None
        self.in_flight = 0
        self.waiting = 0
        self._told_in_flight = 0
        self._telling: asyncio.TimerHandle | None = None
        self.last_used_s = clock()
        self.reason = ""
        self.exit: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        self._state = WorkerState.UNLOADED  # one writer: `_move`
        self._on_change = on_change
        self._clock = clock
        self._answer: asyncio.Future[ReadyLine | FailedLine] = (
            asyncio.get_running_loop().create_future()
        )
        self._stdin = -1
        self._readers: list[PipeReader] = []
        self._pidfd = -1
        self._progress_s = clock()
        self._most_resident_bytes = 0
        self._kill_for: tuple[ExitCause, str] | None = None

    @property
    def model_id(self) -> str:
        return self.plan.model_id

    @property
    def state(self) -> WorkerState:
        return self._state

    @property
    def planned_bytes(self) -> int:
        """What will be resident in RAM by the plan: owned and mapped."""
        return self.plan.plan.own_bytes + self.plan.plan.mapped_bytes

    @property
    def resident_bytes(self) -> int:
        return self.sample.resident_bytes if self.sample else 0

    async def start(self, guard: GuardLink) -> None:
        """Has the guard start the process; its ready line is awaited by `wait_ready`.

        Raises:
            GuardError: when the guard could not start it.
        """
        self._move(WorkerState.STARTING, "loading")
        their_in, self._stdin = os.pipe()
        our_out, their_out = os.pipe()
        our_err, their_err = os.pipe()
        self._readers = [PipeReader(our_out, self._on_stdout), PipeReader(our_err, self._on_log)]
        launch = Launch(
            worker_id=self.worker_id,
            model_id=self.model_id,
            argv=list(self.plan.argv),
            env=self.plan.env,
            cwd="/" if os.name == "posix" else os.environ.get("SYSTEMROOT", "C:\\"),
            caps=self.plan.caps,
        )
        try:
            os.write(self._stdin, self.plan.stdin)
            launched = await guard.launch(launch, their_in, their_out, their_err)
        except BaseException as error:
            self.note_lost(f"it was not started: {error}")
            raise
        finally:
            for fd in (their_in, their_out, their_err):
                os.close(fd)
        self.pid = launched.message.pid
        self.cap = launched.message.cap
        self._pidfd = launched.pidfd
        self._progress_s = self._clock()
        self.tell_activity(guard)
        if self._kill_for is not None:  # it was stopped before there was a process to kill
            await self._kill(guard)

    async def wait_ready(self, stall_s: float) -> ReadyWorker:
        """Waits for the ready line, then until the engine answers.

        Args:
            stall_s: a load that makes no progress for this long is given up; the caller kills it.

        Raises:
            WorkerStartFailed: it ended, or made no progress; with the engine's last lines.
            WorkerStopped: the guard or the user stopped it meanwhile.
        """
        line = await self._wait_answer(stall_s)
        probe_s = PROBE_FIRST_S
        while True:
            reply = await engine_http.get(line.port, "/health", self.plan.key)
            if reply is not None and reply.status in {200, 404}:
                break  # 404: an engine without /health listens only once it is loaded
            await self._pause(probe_s, stall_s)
            probe_s = min(PROBE_LAST_S, probe_s * 1.5)
        context_tokens = line.context_tokens or self.plan.settings.context_tokens
        if self.plan.capabilities.reports_slots:
            context_tokens = await self._slot_context(line.port) or context_tokens
        if self.exit.done():
            raise self._ended(self.exit.result())
        self.ready = ReadyWorker(
            model_id=self.model_id,
            worker_id=self.worker_id,
            host="127.0.0.1",
            port=line.port,
            key=self.plan.key,
            context_tokens=context_tokens,
            slots=line.slots or self.plan.settings.slots,
            capabilities=self.plan.capabilities,
            generation=self.generation,
        )
        self.last_used_s = self._clock()
        self._move(WorkerState.READY, "")
        return self.ready

    def drain(self) -> None:
        """No new request is to be sent to it; those in flight go on."""
        if self._state is WorkerState.READY:
            self._move(WorkerState.DRAINING, "draining")

    async def stop(self, guard: GuardLink, cause: ExitCause, note: str = "") -> Exited:
        """Has the guard kill the whole tree, and waits for its word. May be called twice.

        Raises:
            WorkerStopped: when it does not end within the deadline; it is then marked as failed.
        """
        if self._state in {WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING}:
            self._move(WorkerState.STOPPING, note or cause.value)
        is_first = self._kill_for is None
        if is_first:
            self._kill_for = (cause, note)
        if is_first and self.pid and not self.exit.done():
            await self._kill(guard)
        try:
            async with asyncio.timeout(EXIT_DEADLINE_S):
                return await asyncio.shield(self.exit)
        except TimeoutError:
            raise WorkerStopped(
                f"The worker of {self.model_id} (pid {self.pid}) did not end within "
                f"{EXIT_DEADLINE_S:.0f} s of being killed.",
                cause=cause.value,
                retry_after_s=10,
            ) from None

    def note_sample(self, sample: WorkerSample) -> None:
        """The guard's newest figures of this worker."""
        self.sample = sample
        if sample.resident_bytes > self._most_resident_bytes:
            self._most_resident_bytes = sample.resident_bytes
            self._progress_s = self._clock()
            if self._state is WorkerState.STARTING:
                self._on_change(self, "")

    def note_exit(self, exited: Exited) -> None:
        """The guard has reaped the process; whoever waits for its cause is told."""
        self._close()
        if self.exit.done():
            return
        exited = refine(exited, "\n".join(self.log.trouble()))
        self.exit.set_result(exited)
        if self._state is WorkerState.STOPPING or exited.cause.is_wanted:
            if self._state is not WorkerState.STOPPING:
                self._move(WorkerState.STOPPING, exited.sentence)
            self._move(WorkerState.UNLOADED, exited.sentence)
        elif self._state not in {WorkerState.UNLOADED, WorkerState.FAILED}:
            self._move(WorkerState.FAILED, exited.sentence)

    def note_lost(self, sentence: str, cause: ExitCause = ExitCause.GUARD_LOST) -> None:
        """It is gone, or was never there, and the guard cannot say more."""
        if self._pidfd >= 0 and hasattr(signal, "pidfd_send_signal"):
            # The kernel ends it with the guard; this is for a kernel that did not.
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._close()
        if not self.exit.done():
            self.exit.set_result(Exited(self.worker_id, self.pid, cause, sentence, Evidence()))
        if self._state not in {WorkerState.UNLOADED, WorkerState.FAILED}:
            self._move(WorkerState.FAILED, sentence)

    @property
    def wanted_by(self) -> int:
        """Requests that it answers or is loaded for: none means idle."""
        return self.in_flight + self.waiting

    def activity_changed(self, guard: GuardLink) -> None:
        """Tells the guard at once if it takes a working worker for an idle one, else before long.

        A message for each request would cost both processes more than the request's own way.
        """
        if self.wanted_by and not self._told_in_flight:
            self.tell_activity(guard)
        elif self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_later(ACTIVITY_S, self._tell_late, guard)

    def _tell_late(self, guard: GuardLink) -> None:
        self._telling = None
        if not self.exit.done():
            self.tell_activity(guard)

    def tell_activity(self, guard: GuardLink) -> None:
        self._told_in_flight = self.wanted_by
        guard.send_activity(
            self.worker_id,
            is_loading=self._state is WorkerState.STARTING,
            in_flight=self.wanted_by,
            last_used_s=self.last_used_s,
        )

    # The rest is its own business.

    async def _kill(self, guard: GuardLink) -> None:
        assert self._kill_for is not None
        with contextlib.suppress(GuardError):  # a guard that is lost has lost its workers too
            await guard.kill(self.worker_id, *self._kill_for)

    async def _wait_answer(self, stall_s: float) -> ReadyLine:
        while not self._answer.done():
            await self._pause(STALL_LOOK_S, stall_s, self._answer)
        answer = self._answer.result()
        if isinstance(answer, FailedLine):
            # The exit follows at once and its cause tells more: a cap, a kill, or just this.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXIT_DEADLINE_S):
                    raise self._ended(await asyncio.shield(self.exit), answer.failed)
            raise self._failed(answer.failed)
        return answer

    async def _pause(
        self, seconds: float, stall_s: float, other: asyncio.Future[Any] | None = None
    ) -> None:
        """Waits a moment; raises when the worker has ended or makes no progress."""
        futures: list[asyncio.Future[Any]] = [self.exit]
        if other is not None:
            futures.append(other)
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if other is not None and other.done():
            return
        if self.exit.done():
            raise self._ended(self.exit.result())
        if self._clock() - self._progress_s > stall_s:
            raise self._failed(f"it made no progress for {stall_s:.0f} s")

    async def _slot_context(self, port: int) -> int:
        """Tokens per slot as the engine itself has them; 0 where it does not say."""
        reply = await engine_http.get(port, "/slots", self.plan.key)
        if reply is None or reply.status != 200:
            return 0
        try:
            return min(int(slot["n_ctx"]) for slot in json.loads(reply.body))
        except (ValueError, KeyError, TypeError):
            return 0

    def _ended(self, exited: Exited, said: str = "") -> WorkerStartFailed | WorkerStopped:
        if exited.cause.is_memory or exited.cause.is_wanted:
            return WorkerStopped(exited.sentence, cause=exited.cause.value, retry_after_s=10)
        return self._failed(said or exited.sentence)

    def _failed(self, reason: str) -> WorkerStartFailed:
        last = self.log.trouble()
        words = f" Its last lines: {' | '.join(last)}" if last else ""
        return WorkerStartFailed(
            f"{self.plan.engine.name} could not load {self.model_id}: "
            f"{reason.strip().rstrip('.')}.{words}",
            model=self.model_id,
            engine=self.plan.engine.name,
            log=list(last),
        )

    def _on_stdout(self, line: bytes) -> None:
        answer = parse_answer(line)
        if answer is None or self._answer.done():
            self._on_log(line)
        else:
            self._progress_s = self._clock()
            self._answer.set_result(answer)

    def _on_log(self, line: bytes) -> None:
        self._progress_s = self._clock()
        self.log.add(line)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s: %s", self.worker_id, line[:500].decode("utf-8", "replace"))

    def _move(self, state: WorkerState, reason: str) -> None:
        assert state in WORKER_TRANSITIONS[self._state], f"{self._state} cannot become {state}"
        self._state = state
        self.reason = reason
        self._on_change(self, reason)

    def _close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        for reader in self._readers:
            reader.close()
        self._readers = []
        for fd in (self._stdin, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._stdin = self._pidfd = -1
