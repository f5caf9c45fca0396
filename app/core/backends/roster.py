"""Which workers there are, what is heard of them, and why those of before ended.

Owned by the supervisor, on the core loop. The loader adds workers; the guard's messages move them on;
each change is published.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from app.core.backends.base import LaunchPlan
from app.core.backends.entry import Entry
from app.core.backends.guard_link import GuardMessage
from app.core.backends.memory_back import MemoryBack
from app.core.backends.planner import Live
from app.core.backends.view import WorkerView, own_bytes, view_of
from app.core.backends.worker import Worker
from app.core.events import EventBus, LoadProgressed, Notice, WorkerExited, WorkerStateChanged
from app.core.hardware.machine import Machine
from app.core.lifecycle import ExitCause, WorkerState
from app.guard.protocol import Evidence, Exited, Samples

KEPT_EXITS = 64


class Roster:
    """Thread: core loop.

    Args:
        machine: reads the machine's memory; blocking.
        clock: monotonic seconds.

    Attributes:
        moved: set at each change of a worker or its requests; whoever waits clears it first.
        memory_back: waited for before a load is judged.
    """

    def __init__(
        self, machine: Callable[[], Machine], events: EventBus, clock: Callable[[], float]
    ) -> None:
        self._events = events
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._workers: dict[str, Worker] = {}
        self._exits: OrderedDict[str, Exited] = OrderedDict()
        self._listeners: list[Callable[[GuardMessage], None]] = []
        self._samples: Samples | None = None
        self.moved = asyncio.Event()
        self.memory_back = MemoryBack(machine, clock)

    def subscribe(self, callback: Callable[[GuardMessage], None]) -> None:
        """`callback` hears every message of the guard, after it was acted on here."""
        self._listeners.append(callback)

    def find(self, model_id: str) -> Entry | None:
        """None for a model that was never asked for."""
        return self._entries.get(model_id)

    def entry(self, model_id: str) -> Entry:
        """The model's entry, made if need be."""
        return self._entries.setdefault(model_id, Entry(model_id))

    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    def new_worker(self, entry: Entry, plan: LaunchPlan) -> Worker:
        """A worker that is not started yet, as the entry's own."""
        entry.generation += 1
        worker = Worker(plan, entry.generation, self._on_changed, self._clock)
        worker.waiting = entry.waiting
        entry.worker = worker
        entry.taken = {}
        self._workers[worker.worker_id] = worker
        return worker

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

    def views(self) -> tuple[WorkerView, ...]:
        return tuple(self.view(entry) for entry in self._entries.values())

    @staticmethod
    def view(entry: Entry) -> WorkerView:
        if entry.worker is not None:
            return view_of(entry.worker, entry.taken)
        return WorkerView(
            entry.model_id, entry.state, generation=entry.generation, reason=entry.reason
        )

    def live(self) -> Live:
        """What all workers hold; as planned where the guard has not sampled it yet."""
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

    def hear(self, message: GuardMessage) -> None:
        """What the guard says, acted on and passed to whoever listens."""
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

    def guard_lost(self, reason: str) -> None:
        """Every worker went with its guard."""
        sentence = f"The guard was lost ({reason}), and the worker with it."
        for worker in list(self._workers.values()):
            worker.note_lost(sentence)

    def _expect_memory_back(self, worker: Worker) -> None:
        if self._samples is not None and worker.sample is not None:
            self.memory_back.expect(self._samples.available_bytes, worker.sample.own_bytes)

    def _on_changed(self, worker: Worker, reason: str) -> None:
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
        self.moved.set()

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
