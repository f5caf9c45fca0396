"""A model's worker as others see it: one immutable picture, and the lease that a request holds.

Made by the supervisor on the core loop; a view may be read anywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from app.core.backends.base import EngineInfo
from app.core.backends.worker import Worker
from app.core.lifecycle import WorkerState
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.guard.protocol import CapReport


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One model's worker as it is now. Sizes in bytes; `planned` and `taken` per device."""

    model_id: str
    state: WorkerState
    worker_id: str = ""
    generation: int = 0
    pid: int = 0
    port: int = 0
    engine: EngineInfo | None = None
    load: LoadSettings | None = None
    plan: MemoryPlan | None = None
    cap: CapReport | None = None
    cap_bytes: int = 0
    context_tokens: int = 0
    slots: int = 0
    in_flight: int = 0
    waiting: int = 0
    last_used_s: float = 0.0
    own_bytes: int = 0
    mapped_bytes: int = 0
    resident_bytes: int = 0
    load_fraction: float = 0.0
    planned_bytes: Mapping[str, int] = field(default_factory=dict)
    taken_bytes: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    log: tuple[str, ...] = ()


class Lease:
    """One request in flight at one worker; released once, however often it is asked to."""

    def __init__(self, worker: Worker, on_release: Callable[[Worker], None]) -> None:
        self.worker_id = worker.worker_id
        self._worker: Worker | None = worker
        self._on_release = on_release

    def release(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            self._on_release(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def own_bytes(worker: Worker) -> int:
    """What a worker owns: as sampled, or as planned until it was."""
    return worker.sample.own_bytes if worker.sample else worker.plan.plan.own_bytes


def view_of(worker: Worker, taken: Mapping[str, int]) -> WorkerView:
    """The picture of a live worker; `taken` is what its load took."""
    plan = worker.plan
    planned = worker.planned_bytes
    ready = worker.ready
    sample = worker.sample
    is_loaded = worker.state in {WorkerState.READY, WorkerState.DRAINING}
    fraction = min(1.0, worker.resident_bytes / planned) if planned else 0.0
    return WorkerView(
        model_id=worker.model_id,
        state=worker.state,
        worker_id=worker.worker_id,
        generation=worker.generation,
        pid=worker.pid,
        port=ready.port if ready else 0,
        engine=plan.engine,
        load=plan.settings,
        plan=plan.plan,
        cap=worker.cap,
        cap_bytes=plan.caps.own_bytes,
        context_tokens=ready.context_tokens if ready else plan.settings.context_tokens,
        slots=ready.slots if ready else plan.settings.slots,
        in_flight=worker.in_flight,
        waiting=worker.waiting,
        last_used_s=worker.last_used_s,
        own_bytes=own_bytes(worker),
        mapped_bytes=sample.mapped_bytes if sample else plan.plan.mapped_bytes,
        resident_bytes=worker.resident_bytes,
        load_fraction=1.0 if is_loaded else fraction,
        planned_bytes={
            **{device.device: device.total_bytes for device in plan.plan.devices},
            "RAM": planned,
        },
        taken_bytes=taken,
        reason=worker.reason,
        log=worker.log.lines(),
    )
