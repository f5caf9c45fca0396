"""The one door to the workers: has them loaded, stops them, and counts the requests at each.

Called by the dispatcher and the composition, on the core loop, which is the one writer of all state
in here. The loader starts workers within the memory plan, the roster keeps them and hears the guard.
It carries out what others decide: whom to unload, and when, is the scheduler's business. A request
never restarts a worker; it joins the one that is there or the load that is running.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from app.core.backends.base import Backend
from app.core.backends.guard_keeper import GuardKeeper
from app.core.backends.guard_link import GuardFactory, GuardMessage
from app.core.backends.loader import Loader
from app.core.backends.planner import Library, Planner
from app.core.backends.recovery import Pause
from app.core.backends.roster import Roster
from app.core.backends.view import Lease, WorkerView
from app.core.backends.worker import ReadyWorker, Worker
from app.core.errors import WorkerStopped
from app.core.events import EventBus
from app.core.lifecycle import ExitCause, WorkerState
from app.core.settings import Settings
from app.guard.protocol import Exited

__all__ = ["Lease", "ReadyWorker", "Supervisor", "WorkerView"]

_log = logging.getLogger(__name__)


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
        self._roster = Roster(planner.machine, events, clock)
        self._guard = GuardKeeper(guard, self._roster.hear, self._roster.guard_lost, events)
        self._loader = Loader(
            self._roster, self._guard, library, planner, backends, settings, clock
        )
        self._clock = clock

    # Life.

    async def start(self) -> None:
        """Starts the guard. Raises: GuardError."""
        self._loader.is_stopping = False
        await self._guard.start()

    async def stop_all(self, cause: ExitCause, *, keep_guard: bool = False) -> None:
        """Kills every worker, joins every load, and stops the guard; nothing of ours is left."""
        self._loader.is_stopping = True
        loads = [entry.load for entry in self._roster.entries() if entry.load is not None]
        try:
            results = await asyncio.gather(
                *(self.unload(entry.model_id, cause) for entry in self._roster.entries()),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    _log.warning("while stopping: %s", result)
            if loads:
                await asyncio.wait(loads)
        finally:
            if keep_guard:
                self._loader.is_stopping = False
            else:
                await self._guard.stop()

    @property
    def guard(self) -> GuardKeeper:
        """The guard as it is now: its pid, whether it runs, and the way to answer its verdicts."""
        return self._guard

    def subscribe(self, callback: Callable[[GuardMessage], None]) -> None:
        """`callback` hears every message of the guard, after the supervisor has acted on it."""
        self._roster.subscribe(callback)

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
        entry = self._roster.entry(model_id)
        if entry.worker is not None and entry.worker.state is WorkerState.READY:
            assert entry.worker.ready is not None
            return entry.worker.ready
        return await asyncio.shield(entry.load or self._loader.begin(entry))

    # Unloading.

    async def unload(self, model_id: str, cause: ExitCause, note: str = "") -> None:
        """Ends the model's worker, or its load, at once; returns when the process is reaped."""
        entry = self._roster.find(model_id)
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
        entry = self._roster.find(model_id)
        worker = entry.worker if entry else None
        if worker is None:
            return True
        worker.drain()
        try:
            async with asyncio.timeout(deadline_s):
                while worker.in_flight and not worker.exit.done():
                    self._roster.moved.clear()
                    await self._roster.moved.wait()
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
        """Workers that answer nothing and that nobody waits for, least recently used first."""
        found = [
            view
            for view in self.workers()
            if view.state is WorkerState.READY and not view.in_flight and not view.waiting
        ]
        return tuple(sorted(found, key=lambda view: view.last_used_s))

    # Requests.

    def lease(self, model_id: str) -> Lease:
        """One more request in flight; the worker is not drained away under it.

        Raises:
            WorkerStopped: when the worker is not ready any more.
        """
        entry = self._roster.find(model_id)
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
            entry = self._roster.find(worker.model_id)
            if entry is not None:
                entry.recovery.note_use()
        if self._guard.link is not None and not worker.exit.done():
            worker.activity_changed(self._guard.link)
        self._roster.moved.set()

    def note_waiting(self, model_id: str, count: int) -> None:
        """How many requests wait for the model: its worker is not idle while there are any.

        Counts from the load on, so that the guard takes no model away that was loaded for somebody.
        """
        entry = self._roster.find(model_id)
        if entry is None:
            if not count:
                return
            entry = self._roster.entry(model_id)
        entry.waiting = count
        worker = entry.worker
        if worker is not None and worker.waiting != count:
            worker.waiting = count
            if self._guard.link is not None and not worker.exit.done():
                worker.activity_changed(self._guard.link)

    def worker_exit(self, worker_id: str) -> "asyncio.Future[Exited]":
        """Why a worker ended, as soon as it is known; cancelling it harms nobody."""
        return self._roster.worker_exit(worker_id)

    def cool_down(self, model_id: str) -> Pause | None:
        """Why the model is not loaded again just now; None when it may be."""
        entry = self._roster.find(model_id)
        return entry.recovery.pause(self._clock()) if entry else None

    def forgive(self, model_id: str) -> None:
        """The user asks for the model: what it did before is forgotten, it is loaded at full size."""
        entry = self._roster.find(model_id)
        if entry is not None:
            entry.recovery.forgive()

    # What is so.

    def worker(self, model_id: str) -> WorkerView | None:
        """None for a model that was never asked for."""
        entry = self._roster.find(model_id)
        return self._roster.view(entry) if entry else None

    def workers(self) -> tuple[WorkerView, ...]:
        return self._roster.views()
