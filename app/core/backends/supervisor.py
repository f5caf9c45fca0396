"""Which workers there are: starts them within the memory plan, stops them, and starts the guard anew.

Called by the dispatcher and the composition, on the core loop, which is the one writer of all state
in here. Loads run one at a time, so that each is judged on what the one before has really left. It
carries out what others decide: whom to unload, and when, is the scheduler's business. A request
never restarts a worker; it joins the one that is there or the load that is running.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from app.core.backends.base import Backend, LaunchPlan
from app.core.backends.entry import Entry
from app.core.backends.guard_keeper import GuardKeeper
from app.core.backends.guard_link import GuardFactory, GuardMessage
from app.core.backends.memory_back import MemoryBack
from app.core.backends.planner import EngineUse, Library, Live, Planner, Priced
from app.core.backends.recovery import COOL_DOWN_S, Pause
from app.core.backends.taken import taken_by
from app.core.backends.view import Lease, WorkerView, own_bytes, view_of
from app.core.backends.worker import ReadyWorker, Worker
from app.core.errors import (
    AdmissionClosed,
    CoolheadError,
    DoesNotFit,
    EngineMissing,
    WorkerError,
    WorkerStopped,
)
from app.core.events import EventBus, LoadProgressed, Notice, WorkerExited, WorkerStateChanged
from app.core.lifecycle import ExitCause, WorkerState
from app.core.models.spec import ModelSpec
from app.core.settings import Settings
from app.guard.protocol import Evidence, Exited, Samples

__all__ = ["Lease", "ReadyWorker", "Supervisor", "WorkerView"]

_log = logging.getLogger(__name__)

KEPT_EXITS = 64
OLD_WORKER_S = 600.0


class Supervisor:
    """Thread: core loop. Made before the loop serves; `start` comes first, `stop_all` last.

    Args:
        guard: makes the app's end of a new guard; called again when one is lost.
        backends: in order of preference.
        settings: the current settings.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        *,
        guard: GuardFactory,
        library: Library,
        planner: Planner,
        backends: Sequence[Backend],
        events: EventBus,
        settings: Callable[[], Settings],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._guard = GuardKeeper(guard, self._on_guard, self._on_guard_lost, events)
        self._library = library
        self._planner = planner
        self._backends = tuple(backends)
        self._events = events
        self._settings = settings
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._workers: dict[str, Worker] = {}
        self._exits: OrderedDict[str, Exited] = OrderedDict()
        self._listeners: list[Callable[[GuardMessage], None]] = []
        self._loading = asyncio.Lock()
        self._moved = asyncio.Event()
        self._samples: Samples | None = None
        self._memory_back = MemoryBack(planner.machine, clock)
        self._is_stopping = False

    # Life.

    async def start(self) -> None:
        """Starts the guard. Raises: GuardError."""
        self._is_stopping = False
        await self._guard.start()

    async def stop_all(self, cause: ExitCause, *, keep_guard: bool = False) -> None:
        """Kills every worker, joins every load, and stops the guard; nothing of ours is left."""
        self._is_stopping = True
        loads = [entry.load for entry in self._entries.values() if entry.load is not None]
        try:
            results = await asyncio.gather(
                *(self.unload(model_id, cause) for model_id in list(self._entries)),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    _log.warning("while stopping: %s", result)
            if loads:
                await asyncio.wait(loads)
        finally:
            if keep_guard:
                self._is_stopping = False
            else:
                await self._guard.stop()

    @property
    def guard(self) -> GuardKeeper:
        """The guard as it is now: its pid, whether it runs, and the way to answer its verdicts."""
        return self._guard

    def subscribe(self, callback: Callable[[GuardMessage], None]) -> None:
        """`callback` hears every message of the guard, after the supervisor has acted on it."""
        self._listeners.append(callback)

    # Loading.

    async def ensure_ready(self, model_id: str) -> ReadyWorker:
        """The model's worker, loaded if need be; joins a load that is running.

        Raises:
            ModelError: no such model, or its file is missing or damaged.
            DoesNotFit: by the memory plan; `lacking_bytes` and `device` are in its details.
            EngineMissing: nothing here can run it.
            WorkerStartFailed: the engine did not come up; with its last lines.
            WorkerStopped: it was stopped while it loaded, or is cooling down (`retry_after_s`).
            AdmissionClosed: everything is being stopped.
            GuardError: there is no guard, so nothing is loaded.
        """
        entry = self._entries.get(model_id) or Entry(model_id)
        if entry.worker is not None and entry.worker.state is WorkerState.READY:
            assert entry.worker.ready is not None
            return entry.worker.ready
        if entry.load is None:
            self._entries[model_id] = entry
            entry.stopped = None
            entry.load = asyncio.get_running_loop().create_task(
                self._load(entry), name=f"load {model_id}"
            )
            entry.load.add_done_callback(lambda task: self._load_ended(entry, task))
        return await asyncio.shield(entry.load)

    async def _load(self, entry: Entry) -> ReadyWorker:
        self._refuse_if_stopping(entry)
        spec = await asyncio.to_thread(self._library.find, entry.model_id)
        await self._wait_cool_down(entry)
        await self._wait_old_worker(entry)
        async with self._loading:
            await self._memory_back.wait()
            self._refuse_if_stopping(entry)
            backend = self._backend_for(spec)
            info = await asyncio.to_thread(backend.engine_for, spec)
            engine = EngineUse(info, await asyncio.to_thread(backend.devices, info))
            priced = await self._price(spec, entry, engine)
            plan = await asyncio.to_thread(backend.prepare, spec, priced.load, priced.plan)
            guard = await self._guard.running()
            self._refuse_if_stopping(entry)
            worker = self._new_worker(entry, plan)
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
            self._planner.price, spec, settings, self._live(), engine, steps
        )
        if priced.fit.fits:
            return priced
        fit = priced.fit
        if settings.memory.force_load:
            _log.warning("loading %s although it does not fit: %s", spec.model_id, fit.sentence)
            return priced
        raise DoesNotFit(
            f"{spec.model_id} does not fit. {fit.sentence} {priced.way_out}".rstrip(),
            model=spec.model_id,
            device=fit.device,
            needed_bytes=fit.needed_bytes,
            available_bytes=fit.available_bytes,
            reserve_bytes=fit.reserve_bytes,
            cap_bytes=fit.cap_bytes,
            lacking_bytes=max(1, fit.needed_bytes - fit.cap_bytes),
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

    def _new_worker(self, entry: Entry, plan: LaunchPlan) -> Worker:
        entry.generation += 1
        worker = Worker(plan, entry.generation, self._on_worker_changed, self._clock)
        entry.worker = worker
        entry.taken = {}
        self._workers[worker.worker_id] = worker
        return worker

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

    def _load_ended(self, entry: Entry, task: "asyncio.Task[ReadyWorker]") -> None:
        entry.load = None
        if task.cancelled():
            return
        error = task.exception()  # retrieved here, in case every client has left
        if error is not None and not isinstance(error, CoolheadError):
            _log.error("loading %s failed", entry.model_id, exc_info=error)

    def _refuse_if_stopping(self, entry: Entry) -> None:
        if self._is_stopping:
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

    # Unloading.

    async def unload(self, model_id: str, cause: ExitCause, note: str = "") -> None:
        """Ends the model's worker, or its load, at once; returns when the process is reaped."""
        entry = self._entries.get(model_id)
        if entry is None:
            return
        entry.stopped = cause
        worker = entry.worker
        if worker is None or worker.exit.done():
            return
        guard = self._guard.link
        if guard is None:
            await asyncio.shield(worker.exit)  # dies with its guard; told at once
        else:
            await worker.stop(guard, cause, note)

    async def drain(self, model_id: str, deadline_s: float | None = None) -> bool:
        """No new leases; waits until those in flight are released. Whether all were in time."""
        entry = self._entries.get(model_id)
        worker = entry.worker if entry else None
        if worker is None:
            return True
        worker.drain()
        try:
            async with asyncio.timeout(deadline_s):
                while worker.in_flight and not worker.exit.done():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def unload_idle(self, needed_bytes: int, cause: ExitCause, note: str = "") -> int:
        """Unloads workers without requests, least recently used first; the bytes they held.

        Args:
            needed_bytes: it ends when so much is free; 0 unloads all of them.
            cause: recorded as the reason of each end.
            note: the reason in words.
        """
        freed = 0
        for view in self.idle():
            if needed_bytes and freed >= needed_bytes:
                break
            await self.unload(view.model_id, cause, note)
            freed += view.own_bytes + view.mapped_bytes
        return freed

    def idle(self) -> tuple[WorkerView, ...]:
        """Workers that answer nothing, least recently used first."""
        found = [w for w in self.workers() if w.state is WorkerState.READY and not w.in_flight]
        return tuple(sorted(found, key=lambda view: view.last_used_s))

    # Requests.

    def lease(self, model_id: str) -> Lease:
        """One more request in flight; the worker is not drained away under it.

        Raises:
            WorkerStopped: when the worker is not ready any more.
        """
        entry = self._entries.get(model_id)
        worker = entry.worker if entry else None
        if worker is None or worker.state is not WorkerState.READY:
            raise WorkerStopped(
                f"{model_id} is not loaded any more.",
                cause=ExitCause.UNLOADED.value,
                retry_after_s=1,
            )
        self._count(worker, 1)
        return Lease(worker, lambda worker: self._count(worker, -1))

    def _count(self, worker: Worker, change: int) -> None:
        worker.in_flight += change
        worker.last_used_s = self._clock()
        if change < 0 and worker.state is WorkerState.READY:
            entry = self._entries.get(worker.model_id)
            if entry is not None:
                entry.recovery.note_use()
        if self._guard.link is not None and not worker.exit.done():
            worker.activity_changed(self._guard.link)
        self._moved.set()

    def worker_exit(self, worker_id: str) -> "asyncio.Future[Exited]":
        """Why a worker ended, as soon as it is known; cancelling it harms nobody."""
        worker = self._workers.get(worker_id)
        if worker is not None:
            return asyncio.shield(worker.exit)
        future: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        unknown = "That worker ended long ago; why is not known any more."
        future.set_result(
            self._exits.get(worker_id)
            or Exited(worker_id, 0, ExitCause.UNKNOWN, unknown, Evidence())
        )
        return future

    def cool_down(self, model_id: str) -> Pause | None:
        """Why the model is not loaded again just now; None when it may be."""
        entry = self._entries.get(model_id)
        return entry.recovery.pause(self._clock()) if entry else None

    def forgive(self, model_id: str) -> None:
        """The user asks for the model: what it did before is forgotten, it is loaded at full size."""
        if model_id in self._entries:
            self._entries[model_id].recovery.forgive()

    # What is so.

    def worker(self, model_id: str) -> WorkerView | None:
        """None for a model that was never asked for."""
        entry = self._entries.get(model_id)
        return self._view(entry) if entry else None

    def workers(self) -> tuple[WorkerView, ...]:
        return tuple(self._view(entry) for entry in self._entries.values())

    @staticmethod
    def _view(entry: Entry) -> WorkerView:
        if entry.worker is not None:
            return view_of(entry.worker, entry.taken)
        return WorkerView(
            entry.model_id, entry.state, generation=entry.generation, reason=entry.reason
        )

    def _live(self) -> Live:
        alive = [worker for worker in self._workers.values() if not worker.exit.done()]
        gpus: dict[str, int] = {}
        for worker in alive:
            for device in worker.plan.plan.devices:
                if device.device != "RAM":
                    gpus[device.device] = gpus.get(device.device, 0) + device.total_bytes
        return Live(
            mapped_bytes=sum(worker.plan.plan.mapped_bytes for worker in alive),
            own_bytes=sum(own_bytes(worker) for worker in alive),
            gpu_bytes=gpus,
        )

    # What is heard.

    def _on_guard(self, message: GuardMessage) -> None:
        if isinstance(message, Exited):
            worker = self._workers.get(message.worker_id)
            if worker is not None:
                self._expect_memory_back(worker)
                worker.note_exit(message)
        elif isinstance(message, Samples):
            self._samples = message
            for sample in message.workers:
                worker = self._workers.get(sample.worker_id)
                if worker is not None:
                    worker.note_sample(sample)
        for listener in self._listeners:
            listener(message)

    def _on_guard_lost(self, reason: str) -> None:
        sentence = f"The guard was lost ({reason}), and the worker with it."
        for worker in list(self._workers.values()):
            worker.note_lost(sentence)

    def _expect_memory_back(self, worker: Worker) -> None:
        if self._samples is not None and worker.sample is not None:
            self._memory_back.expect(self._samples.available_bytes, worker.sample.own_bytes)

    def _on_worker_changed(self, worker: Worker, reason: str) -> None:
        now = time.time()
        if worker.state is WorkerState.STARTING and not reason:
            self._events.publish(
                LoadProgressed(worker.model_id, worker.resident_bytes, worker.planned_bytes, at=now)
            )
            return
        if worker.exit.done():
            self._forget(worker)
        self._events.publish(WorkerStateChanged(worker.model_id, worker.state, reason, at=now))
        if worker.exit.done() and worker.state in {WorkerState.FAILED, WorkerState.UNLOADED}:
            exited = worker.exit.result()
            self._events.publish(
                WorkerExited(worker.model_id, exited.pid, exited.cause, exited.sentence, at=now)
            )
        self._moved.set()

    def _forget(self, worker: Worker) -> None:
        """Its process is gone: what is kept is why."""
        exited = worker.exit.result()
        if self._workers.pop(worker.worker_id, None) is None:
            return
        self._exits[worker.worker_id] = exited
        while len(self._exits) > KEPT_EXITS:
            self._exits.popitem(last=False)
        entry = self._entries[worker.model_id]
        if entry.worker is worker:
            entry.worker = None
            entry.state = worker.state
            entry.reason = exited.sentence
        entry.recovery.note_end(exited.cause, exited.sentence, self._clock())
        pause = entry.recovery.pause(self._clock())
        if pause is not None and pause.needs_user:
            title = f"{worker.model_id} was stopped again"
            self._events.publish(
                Notice(f"stopped:{worker.model_id}", title, pause.sentence, True, at=time.time())
            )
