"""Carries the scheduler's decisions out: loads and unloads models, hands out and takes back slots.

The dispatcher enters it once for each request that a local model answers. Core loop only.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from app.core.backends.supervisor import ReadyWorker, WorkerView
from app.core.errors import AdmissionClosed, CoolheadError, QueueFull, WorkerStartFailed
from app.core.events import Event, WorkerStateChanged
from app.core.lifecycle import ExitCause, WorkerState
from app.core.router.decision import Overload
from app.core.router.gate import VAIN_LOAD_PAUSE_S, Gate
from app.core.router.scheduler import RAM, ModelView, Place, Policy, Scheduler
from app.core.router.slot_watch import SlotWatch
from app.core.router.tickets import Refusal, RefusalKind, Ticket
from app.core.router.worker_client import WorkerClient
from app.guard.protocol import Exited

_log = logging.getLogger(__name__)


class Lease(Protocol):
    def release(self) -> None: ...


class Workers(Protocol):
    """What is asked of the supervisor."""

    async def ensure_ready(self, model_id: str) -> ReadyWorker: ...
    async def unload(self, model_id: str, cause: ExitCause, note: str = "") -> None: ...
    def worker(self, model_id: str) -> WorkerView | None: ...
    def worker_exit(self, worker_id: str) -> "asyncio.Future[Exited]": ...
    def lease(self, model_id: str) -> Lease: ...
    def note_waiting(self, model_id: str, count: int) -> None: ...


class Wish(msgspec.Struct, frozen=True):
    """What a request asks of the scheduler; see `Ticket`."""

    model_id: str
    priority: int = 0
    size_tokens: int = 0
    max_wait_s: float = 600.0
    overload: Overload | None = None
    may_degrade: bool = False


@dataclass(slots=True)
class Post:
    """A ready worker as requests see it: who it is, and the connections to it."""

    worker: ReadyWorker
    client: WorkerClient
    watch: SlotWatch


class Grant(msgspec.Struct, eq=False):
    """A slot, held until `Admissions.leave`."""

    ticket: Ticket
    post: Post
    lease: Lease
    is_left: bool = False


@dataclass(slots=True)
class _Waiter:
    future: "asyncio.Future[Grant]"
    grant: Grant | None = None


class Admissions:
    """Thread: core loop only.

    Args:
        workers: the supervisor.
        gate: asked at each `gate_changed`.
    """

    def __init__(self, workers: Workers, gate: Gate, policy: Policy) -> None:
        self._workers = workers
        self._gate = gate
        self._scheduler = Scheduler(self, policy)
        self._numbers = itertools.count(1)
        self._waiters: dict[int, _Waiter] = {}
        self._posts: dict[str, Post] = {}
        self._loads: dict[str, list[asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # Requests.

    def enter_at_once(self, model_id: str, priority: int, size_tokens: int) -> Grant | None:
        """A slot that is free right now; None where there is something to wait for: `enter`."""
        post = self._posts.get(model_id)
        if post is None:
            return None
        now = self._now()
        ticket = Ticket(next(self._numbers), model_id, priority, size_tokens, now)
        if not self._scheduler.take(ticket, now):
            return None
        try:
            lease = self._workers.lease(model_id)
        except CoolheadError:  # it has just ended; its event is on the way
            self._scheduler.release(ticket, now)
            return None
        post.watch.take()
        return Grant(ticket, post, lease)

    async def enter(self, wish: Wish) -> Grant:
        """Waits for a slot of a ready worker.

        Raises:
            AdmissionClosed: nothing is taken now, or the wait was too long.
            QueueFull: too many wait.
            CoolheadError: whatever stopped the load.
        """
        now = self._now()
        ticket = Ticket(
            next(self._numbers),
            wish.model_id,
            wish.priority,
            wish.size_tokens,
            now,
            now + wish.max_wait_s,
            wish.overload,
            wish.may_degrade,
        )
        waiter = _Waiter(asyncio.get_running_loop().create_future())
        self._waiters[ticket.ticket_id] = waiter
        try:
            self._scheduler.submit(ticket, now)
            if waiter.grant is not None:
                return waiter.grant
            self._tell_waiting(wish.model_id)
            return await waiter.future
        except asyncio.CancelledError:
            # It may have been granted in the very moment in which its client left.
            if waiter.grant is not None:
                self.leave(waiter.grant, is_idle=True)
            else:
                self._scheduler.withdraw(ticket, self._now())
                self._tell_waiting(wish.model_id)
            raise
        finally:
            self._waiters.pop(ticket.ticket_id, None)

    def leave(self, grant: Grant, *, is_idle: bool) -> None:
        """Gives a slot back: at once if it `is_idle`, else as soon as the worker says that it is."""
        if grant.is_left:
            return
        grant.is_left = True
        post = grant.post
        if is_idle or not post.worker.capabilities.reports_slots:
            post.watch.drop()
            self._settle(grant)
        else:
            post.watch.await_idle(lambda: self._settle(grant))

    def _settle(self, grant: Grant) -> None:
        grant.lease.release()
        self._scheduler.release(grant.ticket, self._now())

    # The user, the guard, the clock.

    async def load(self, model_id: str) -> None:
        """Loads a model without a request. Raises: CoolheadError, whatever stopped it."""
        if self._scheduler.view(model_id).place is Place.READY:
            return
        self._gate.open_paused(model_id)
        self.gate_changed()
        admission = self._gate.admission()
        closing = admission.closed_models.get(model_id)
        if closing is not None:
            raise AdmissionClosed(closing.sentence, retry_after_s=closing.retry_after_s)
        if not admission.loads:
            raise AdmissionClosed(admission.sentence, retry_after_s=admission.retry_after_s)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._loads.setdefault(model_id, []).append(future)
        self._scheduler.want(model_id, self._now())
        await future

    def drain(self, model_id: str, reason: str = "unloaded by you") -> None:
        """Unloads a model once its requests are answered."""
        self._scheduler.drain(model_id, self._now(), reason)

    def send_away(self, model_id: str, sentence: str, retry_after_s: int) -> bool:
        """Refuses those who wait for a model, and ends a load for them; whether there were any."""
        return self._scheduler.send_away(model_id, sentence, retry_after_s)

    def loaded_in_vain(self, model_id: str, sentence: str) -> None:
        """Memory ends a worker: one that answered nothing is not loaded again at once."""
        if self._scheduler.is_unused(model_id):
            self._pause(model_id, sentence)

    def _pause(self, model_id: str, sentence: str) -> None:
        words = f"It was loaded and had to go before it answered: {sentence}"
        self._gate.close_model(model_id, words, self._now(), VAIN_LOAD_PAUSE_S)
        # Not at once: the scheduler may be the one who calls.
        asyncio.get_running_loop().call_soon(self.gate_changed)

    def gate_changed(self) -> None:
        self._scheduler.set_admission(self._gate.admission(), self._now())

    def set_policy(self, policy: Policy) -> None:
        self._scheduler.set_policy(policy, self._now())

    def tick(self) -> None:
        """Call it about once a second."""
        if self._gate.expire(self._now()):
            self.gate_changed()
        self._scheduler.tick(self._now())

    def on_event(self, event: Event) -> None:
        """Hears of workers that others start and end."""
        if not isinstance(event, WorkerStateChanged):
            return
        model_id = event.model_id
        if event.state in {WorkerState.STOPPING, WorkerState.DRAINING}:
            self._scheduler.ending(model_id, self._now())
        elif event.state in {WorkerState.FAILED, WorkerState.UNLOADED}:
            self._ended(model_id)

    def _ended(self, model_id: str) -> None:
        post = self._posts.pop(model_id, None)
        self._scheduler.unloaded(model_id, self._now())
        if post is not None:
            post.watch.close()
            post.client.close()

    async def close(self) -> None:
        """Ends what runs beside the requests; the workers are the supervisor's to end."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for model_id in list(self._posts):
            self._ended(model_id)

    # What is so.

    def views(self) -> tuple[ModelView, ...]:
        return self._scheduler.views()

    def is_ready(self, model_id: str) -> bool:
        return self._scheduler.is_ready(model_id)

    def view(self, model_id: str) -> ModelView:
        return self._scheduler.view(model_id)

    def post(self, model_id: str) -> Post | None:
        return self._posts.get(model_id)

    @property
    def in_flight(self) -> int:
        return self._scheduler.in_flight

    @property
    def queued(self) -> int:
        return self._scheduler.queued

    # The scheduler's effects.

    def start_load(self, model_id: str) -> None:
        self._spawn(self._load(model_id), f"ensure {model_id}")

    def stop_load(self, model_id: str, reason: str) -> None:
        reason = self._gate.pressure_sentence or reason
        self._pause(model_id, reason)
        self._spawn(self._unload(model_id, reason), f"stop load of {model_id}")

    def unload(self, model_id: str, reason: str) -> None:
        self._spawn(self._unload(model_id, reason), f"unload {model_id}")

    def grant(self, ticket: Ticket) -> None:
        waiter = self._waiters[ticket.ticket_id]
        post = self._posts[ticket.model_id]
        try:
            lease = self._workers.lease(ticket.model_id)
        except CoolheadError as error:  # it has just ended; its event is on the way
            asyncio.get_running_loop().call_soon(self._scheduler.release, ticket, self._now())
            self._answer(waiter, error)
            return
        post.watch.take()
        waiter.grant = Grant(ticket, post, lease)
        self._tell_waiting(ticket.model_id)
        if not waiter.future.done():
            waiter.future.set_result(waiter.grant)

    def refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        error: CoolheadError
        if isinstance(refusal.error, CoolheadError):
            error = refusal.error
        elif refusal.kind is RefusalKind.OVERLOADED:
            error = QueueFull(refusal.sentence, retry_after_s=refusal.retry_after_s)
        elif refusal.kind is RefusalKind.LOAD_FAILED:
            error = WorkerStartFailed(refusal.sentence, retry_after_s=refusal.retry_after_s)
        else:
            error = AdmissionClosed(
                refusal.sentence, retry_after_s=refusal.retry_after_s, reason=refusal.kind.value
            )
        self._answer(self._waiters[ticket.ticket_id], error)
        self._tell_waiting(ticket.model_id)

    def _tell_waiting(self, model_id: str) -> None:
        """After each change: a model that somebody waits for is none that idles."""
        self._workers.note_waiting(model_id, self._scheduler.waiting(model_id))

    def give_up(self, model_id: str, error: Exception) -> None:
        self._tell_loads(model_id, error)

    @staticmethod
    def _answer(waiter: _Waiter, error: CoolheadError) -> None:
        if not waiter.future.done():
            waiter.future.set_exception(error)

    # Beside the requests.

    async def _load(self, model_id: str) -> None:
        try:
            worker = await self._workers.ensure_ready(model_id)
        except CoolheadError as error:
            lacking_bytes = error.details.get("lacking_bytes")
            self._scheduler.load_failed(
                model_id,
                error,
                self._now(),
                lacking_bytes if isinstance(lacking_bytes, int) else 0,
                str(error.details.get("device", RAM)),
            )
            return
        except asyncio.CancelledError:
            stopping = AdmissionClosed("Coolhead is stopping.", retry_after_s=10)
            self._scheduler.load_failed(model_id, stopping, self._now())
            raise
        except Exception as error:  # noqa: BLE001 - a bug must not leave its clients waiting
            _log.exception("loading %s failed", model_id)
            wrapped = WorkerStartFailed(f"{model_id} could not be loaded: {error}")
            self._scheduler.load_failed(model_id, wrapped, self._now())
            return
        client = WorkerClient(worker.host, worker.port, worker.key)
        self._posts[model_id] = Post(worker, client, SlotWatch(client, worker.slots))
        self._scheduler.load_finished(
            model_id, worker.slots, self._bytes_held(model_id), self._now()
        )
        closing = self._gate.admission().closed_models.get(model_id)
        if closing is not None and math.isinf(closing.until_s):
            self.drain(model_id, closing.sentence)
        self._tell_loads(model_id, None)

    def _tell_loads(self, model_id: str, error: Exception | None) -> None:
        for future in self._loads.pop(model_id, ()):
            if not future.done():
                if error is None:
                    future.set_result(None)
                else:
                    future.set_exception(error)

    def _bytes_held(self, model_id: str) -> Mapping[str, int]:
        view = self._workers.worker(model_id)
        if view is None:
            return {}
        held = dict(view.planned_bytes)
        held[RAM] = view.own_bytes + view.mapped_bytes
        return held

    async def _unload(self, model_id: str, reason: str) -> None:
        try:
            await self._workers.unload(model_id, ExitCause.UNLOADED, reason)
        except CoolheadError as error:
            _log.warning("unloading %s: %s", model_id, error)
        finally:
            if self._scheduler.view(model_id).place is Place.UNLOADING:
                self._ended(model_id)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    _now = staticmethod(time.monotonic)
