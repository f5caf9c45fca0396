"""Loads one model at a time: engine, price, verdict, worker, ready; and clears away what failed.

Owned by the supervisor, on the core loop. Loads run one after the other, so that each is judged on
what the one before has really left.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from app.core.backends.base import Backend
from app.core.backends.entry import Entry
from app.core.backends.guard_keeper import GuardKeeper
from app.core.backends.planner import EngineUse, Library, Planner, Priced
from app.core.backends.recovery import COOL_DOWN_S
from app.core.backends.roster import Roster
from app.core.backends.taken import taken_by
from app.core.backends.worker import ReadyWorker, Worker
from app.core.errors import (
    AdmissionClosed,
    CoolheadError,
    DoesNotFit,
    EngineMissing,
    WorkerError,
    WorkerStopped,
)
from app.core.lifecycle import ExitCause, WorkerState
from app.core.models.spec import ModelSpec
from app.core.settings import Settings

_log = logging.getLogger(__name__)

OLD_WORKER_S = 600.0


class Loader:
    """Thread: core loop. What it can raise is said at `Supervisor.ensure_ready`.

    Attributes:
        is_stopping: no load goes on; the supervisor is its one writer.
    """

    def __init__(
        self,
        roster: Roster,
        guard: GuardKeeper,
        library: Library,
        planner: Planner,
        backends: Sequence[Backend],
        settings: Callable[[], Settings],
        clock: Callable[[], float],
    ) -> None:
        self._roster = roster
        self._guard = guard
        self._library = library
        self._planner = planner
        self._backends = tuple(backends)
        self._settings = settings
        self._clock = clock
        self._loading = asyncio.Lock()
        self.is_stopping = False

    def begin(self, entry: Entry) -> "asyncio.Task[ReadyWorker]":
        """Starts a load as a task of its own: it goes on when the client that asked has left."""
        entry.stopped = None
        load = asyncio.get_running_loop().create_task(
            self._load(entry), name=f"load {entry.model_id}"
        )
        entry.load = load
        load.add_done_callback(lambda task: self._load_ended(entry, task))
        return load

    def _load_ended(self, entry: Entry, task: "asyncio.Task[ReadyWorker]") -> None:
        entry.load = None
        if task.cancelled():
            return
        error = task.exception()  # retrieved here, in case every client has left
        if error is not None and not isinstance(error, CoolheadError):
            _log.error("loading %s failed", entry.model_id, exc_info=error)

    async def _load(self, entry: Entry) -> ReadyWorker:
        self._refuse_if_stopping(entry)
        spec = await asyncio.to_thread(self._library.find, entry.model_id)
        await self._wait_cool_down(entry)
        await self._wait_old_worker(entry)
        async with self._loading:
            await self._roster.memory_back.wait()
            self._refuse_if_stopping(entry)
            backend = self._backend_for(spec)
            info = await asyncio.to_thread(backend.engine_for, spec)
            engine = EngineUse(info, await asyncio.to_thread(backend.devices, info))
            priced = await self._price(spec, entry, engine)
            plan = await asyncio.to_thread(backend.prepare, spec, priced.load, priced.plan)
            guard = await self._guard.running()
            self._refuse_if_stopping(entry)
            worker = self._roster.new_worker(entry, plan)
            try:
                await worker.start(guard)
                ready = await worker.wait_ready(self._settings().engine.load_timeout_s)
            except BaseException as error:
                await self._clear_away(entry, worker, error)
                raise
            worker.tell_activity(guard)
            self._record(entry, spec, priced, engine, worker)
            return ready

    async def _price(self, spec: ModelSpec, entry: Entry, engine: EngineUse) -> Priced:
        settings = self._settings()
        steps = entry.recovery.steps
        priced = await asyncio.to_thread(
            self._planner.price, spec, settings, self._roster.live(), engine, steps
        )
        if priced.fit.fits:
            return priced
        fit = priced.fit
        if settings.memory.force_load:
            _log.warning("loading %s although it does not fit: %s", spec.model_id, fit.sentence)
            return priced
        # What could never fit makes nobody leave, and is not worth coming back for.
        lacking_bytes = 0 if fit.is_hopeless else max(1, fit.needed_bytes - fit.cap_bytes)
        waiting = " Waiting does not change that." if fit.is_hopeless else ""
        raise DoesNotFit(
            f"{spec.model_id} does not fit. {fit.sentence}{waiting} {priced.way_out}".rstrip(),
            model=spec.model_id,
            device=fit.device,
            needed_bytes=fit.needed_bytes,
            available_bytes=fit.available_bytes,
            reserve_bytes=fit.reserve_bytes,
            cap_bytes=fit.cap_bytes,
            lacking_bytes=lacking_bytes,
            is_permanent=fit.is_hopeless,
        )

    def _backend_for(self, spec: ModelSpec) -> Backend:
        for backend in self._backends:
            if backend.can_run(spec):
                return backend
        raise EngineMissing(
            f"No engine here runs {spec.model_id} ({spec.format}, {spec.architecture}). "
            "`coolhead doctor` shows which engines there are.",
            model=spec.model_id,
        )

    async def _clear_away(self, entry: Entry, worker: Worker, error: BaseException) -> None:
        """A worker that did not become ready is killed, and its end waited for."""
        failed = isinstance(error, WorkerError) and worker.state is WorkerState.STARTING
        if failed:
            entry.recovery.note_end(ExitCause.EXITED, str(error), self._clock())
        if not worker.exit.done() and self._guard.link is not None:
            with contextlib.suppress(CoolheadError):
                await worker.stop(self._guard.link, ExitCause.UNLOADED, "it did not become ready")
        if failed:
            entry.state = WorkerState.FAILED
            entry.reason = str(error)

    def _refuse_if_stopping(self, entry: Entry) -> None:
        if self.is_stopping:
            raise AdmissionClosed("Coolhead is stopping.", retry_after_s=10)
        if entry.stopped is not None:
            raise WorkerStopped(
                f"The load of {entry.model_id} was stopped.",
                cause=entry.stopped.value,
                retry_after_s=10,
            )

    async def _wait_old_worker(self, entry: Entry) -> None:
        """A worker of before drains or ends; the new one does not start beside it."""
        if entry.worker is None:
            return
        try:
            async with asyncio.timeout(OLD_WORKER_S):
                await asyncio.shield(entry.worker.exit)
        except TimeoutError:
            raise WorkerStopped(
                f"The worker of {entry.model_id} before this one has not ended yet.",
                cause=ExitCause.UNLOADED.value,
                retry_after_s=30,
            ) from None

    async def _wait_cool_down(self, entry: Entry) -> None:
        while (pause := entry.recovery.pause(self._clock())) is not None:
            if pause.needs_user or pause.retry_after_s > COOL_DOWN_S:
                raise WorkerStopped(
                    pause.sentence,
                    cause=pause.cause.value,
                    retry_after_s=pause.retry_after_s or 60,
                    needs_user=pause.needs_user,
                )
            self._refuse_if_stopping(entry)
            await asyncio.sleep(min(0.25, pause.retry_after_s))

    def _record(
        self, entry: Entry, spec: ModelSpec, priced: Priced, engine: EngineUse, worker: Worker
    ) -> None:
        plan = worker.plan.plan
        taken = taken_by(worker.pid)
        found = dict(worker.sample.gpu_bytes) if worker.sample else {}
        if taken is not None:
            # Of what is mapped, the libraries are everyone's; the weights are the plan's.
            found["RAM"] = taken.own_bytes + min(taken.mapped_bytes, plan.mapped_bytes)
        elif worker.sample is not None:
            found["RAM"] = worker.sample.own_bytes + worker.sample.mapped_bytes
        entry.taken = found
        _log.info(
            "%s is ready: planned %d bytes of RAM, took %s",
            worker.worker_id,
            plan.own_bytes + plan.mapped_bytes,
            found,
        )
        asyncio.get_running_loop().run_in_executor(
            None, self._planner.record, spec, priced, found, engine
        )
