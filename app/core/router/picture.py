"""The snapshot: what the supervisor, the endpoint and the guard know, put together as it was probed.

Taken by the composition on the core loop, a few times a second.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.backends.supervisor import Supervisor, WorkerView
from app.core.handle import ModelSummary, Snapshot, WorkerSnapshot
from app.core.lifecycle import AppState, CapKind, WorkerState
from app.core.models.plan import RAM
from app.core.models.spec import ModelSpec
from app.core.router.endpoint import Endpoint
from app.core.router.ladder import Ladder
from app.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the picture cannot see for itself. `phase` is set while the app starts or stops."""

    pid: int
    settings: Settings
    problems: tuple[str, ...]
    ram_total_bytes: int
    ram_available_bytes: int
    models: tuple[ModelSpec, ...] = ()
    phase: AppState | None = None
    reason: str = ""
    safe_mode_sentence: str = ""


def take_picture(
    supervisor: Supervisor, endpoint: Endpoint, ladder: Ladder, around: Surroundings
) -> Snapshot:
    """The snapshot of this moment, its `version` not yet set."""
    speeds = endpoint.speeds()
    views = supervisor.workers()
    workers = tuple(_worker(view, endpoint, speeds) for view in views)
    ready = supervisor.guard.ready
    samples = ladder.samples
    return Snapshot(
        state=_state(endpoint, views, around),
        reason=around.reason,
        endpoint=endpoint.url,
        is_paused=endpoint.is_paused,
        pause_sentence=endpoint.pause_sentence,
        pressure=ladder.level,
        pressure_sentence=ladder.sentence,
        pid=around.pid,
        guard_pid=supervisor.guard.pid,
        cap_kind=ready.cap_kind if ready else CapKind.WATCH_ONLY,
        is_safe_mode=bool(around.safe_mode_sentence),
        safe_mode_sentence=around.safe_mode_sentence,
        in_flight=endpoint.in_flight,
        queued=endpoint.queued,
        tokens_per_s=sum(speeds.values()),
        ram_total_bytes=around.ram_total_bytes,
        ram_available_bytes=samples.available_bytes if samples else around.ram_available_bytes,
        workers=workers,
        models=_models(around.models, views),
        settings=around.settings,
        problems=around.problems,
    )


def _state(endpoint: Endpoint, views: tuple[WorkerView, ...], around: Surroundings) -> AppState:
    if around.phase is not None:
        return around.phase
    if not endpoint.is_open:
        return AppState.STOPPED
    if any(view.state is WorkerState.STARTING for view in views):
        return AppState.STARTING
    if endpoint.is_paused:
        return AppState.PAUSED
    return AppState.BUSY if endpoint.running else AppState.READY


def _worker(view: WorkerView, endpoint: Endpoint, speeds: Mapping[str, float]) -> WorkerSnapshot:
    model = endpoint.model(view.model_id)
    planned: dict[str, int] = {}
    if view.plan is not None:
        planned = {part.device: part.total_bytes for part in view.plan.devices}
    taken = {device: size for device, size in view.taken_bytes.items() if device != RAM}
    if view.pid:
        # Mapped weights are in RAM like the rest; what is left out of it is only the file cache.
        taken[RAM] = view.resident_bytes
    return WorkerSnapshot(
        model_id=view.model_id,
        state=view.state,
        pid=view.pid,
        engine=f"{view.engine.name} {view.engine.version}" if view.engine else "",
        context_tokens=view.context_tokens,
        slots=view.slots,
        in_flight=model.in_flight,
        queued=model.queued,
        tokens_per_s=speeds.get(view.model_id, 0.0),
        load_fraction=view.load_fraction,
        planned_bytes=planned,
        taken_bytes=taken,
        own_bytes=view.own_bytes,
        cap_bytes=view.cap_bytes,
        kernel_limit_bytes=view.cap.limit_bytes if view.cap else 0,
        cap_kind=view.cap.kind if view.cap else CapKind.WATCH_ONLY,
        reason=view.reason,
    )


def _models(
    specs: tuple[ModelSpec, ...], views: tuple[WorkerView, ...]
) -> tuple[ModelSummary, ...]:
    loaded = {view.model_id: view for view in views if view.state is WorkerState.READY}
    return tuple(
        ModelSummary(
            spec.model_id,
            str(spec.path),
            spec.size_bytes,
            loaded[spec.model_id].context_tokens if spec.model_id in loaded else 0,
            spec.model_id in loaded,
        )
        for spec in specs
    )
