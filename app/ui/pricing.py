"""What the settings at hand would take of each memory: the figures behind the plan bars. Pure.

The one place where the panel asks the memory plan, the presets and the refusing rule; under a
millisecond or two for each move of a slider. Called on the GUI thread with facts that were read
elsewhere (`facts.py`).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.errors import CoolheadError
from app.core.handle import ModelSummary, Snapshot, WorkerSnapshot
from app.core.hardware.machine import Machine
from app.core.lifecycle import WorkerState
from app.core.models.choice import Choice
from app.core.models.fit import RAM, Fit, Limits, judge_all, limits_from
from app.core.models.plan import DevicePlan, MemoryPlan, plan_memory
from app.core.models.presets import choose
from app.core.models.pricing import Pricing
from app.core.models.spec import ModelSpec
from app.core.settings import Settings
from app.ui.i18n import tr


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read of this machine and of the model that is priced; `problem` says what could not."""

    machine: Machine
    spec: ModelSpec | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """One memory, in bytes.

    Attributes:
        title: "RAM", or the GPU's name.
        others_bytes: the desktop, other programs, and other models.
        reserve_bytes: kept for the desktop.
        part: what the model would take, by kind; the very figures of the memory plan.
        cap_bytes: what models may take here at most, by cap and reserve.
        taken_bytes: what its worker really takes; None when none runs.
    """

    device: str
    title: str
    total_bytes: int
    others_bytes: int
    reserve_bytes: int
    part: DevicePlan
    cap_bytes: int
    taken_bytes: int | None
    fits: bool
    sentence: str

    @property
    def free_bytes(self) -> int:
        used = self.others_bytes + self.reserve_bytes + self.part.total_bytes
        return max(0, self.total_bytes - used)


@dataclass(frozen=True, slots=True)
class Priced:
    """The settings' price. `effective` has the figure that stands in for each 0 and `auto`."""

    bars: tuple[Bar, ...]
    fits: bool
    sentence: str
    choice: Choice | None = None
    plan: MemoryPlan | None = None
    effective: Mapping[str, object] = field(default_factory=dict)


def chosen_model(settings: Settings, snapshot: Snapshot) -> ModelSummary | None:
    """The model that `settings` are priced for: the default one, else one that is loaded."""
    by_id = {model.model_id: model for model in snapshot.models}
    wanted = by_id.get(settings.model.default)
    loaded = next((model for model in snapshot.models if model.is_loaded), None)
    return wanted or loaded or next(iter(snapshot.models), None)


def price(facts: Facts, settings: Settings, snapshot: Snapshot) -> Priced:
    """The bars, the verdict and the effective figures of `settings`."""
    spec = facts.spec
    worker = _worker_of(spec, snapshot)
    machine = _as_if_unloaded(facts.machine, worker)
    others = _others(snapshot, worker)
    limits = limits_from(settings, machine)
    if spec is None:
        bars = _bars(machine, limits, others, MemoryPlan((), 0, 0, "formula", 0.0), (), worker)
        sentence = facts.problem or tr("No model is installed yet; the Models page fetches one.")
        return Priced(bars, not facts.problem, sentence, effective=_of_machine(limits, bars))
    try:
        choice = choose(spec, others.leave(machine), settings)
        plan = plan_memory(spec, choice.load, choice.gpus)
    except CoolheadError as error:
        bars = _bars(machine, limits, others, MemoryPlan((), 0, 0, "formula", 0.0), (), worker)
        return Priced(bars, False, error.message, effective=_of_machine(limits, bars))
    fits = judge_all(plan, machine, limits, others.mapped_bytes, others.own_bytes, others.gpu_bytes)
    tightest = min(fits, key=lambda fit: (fit.fits, fit.headroom_bytes))
    bars = _bars(machine, limits, others, plan, fits, worker)
    effective = _of_machine(limits, bars) | _of_choice(choice)
    return Priced(bars, tightest.fits, tightest.sentence, choice, plan, effective)


def room_for(facts: Facts, settings: Settings, snapshot: Snapshot) -> Pricing | None:
    """What other models leave to the priced one, to search in; None where none is priced."""
    if facts.spec is None:
        return None
    worker = _worker_of(facts.spec, snapshot)
    machine = _as_if_unloaded(facts.machine, worker)
    others = _others(snapshot, worker)
    limits = others.lower(limits_from(settings, machine))
    return Pricing(facts.spec, others.leave(machine), limits)


@dataclass(frozen=True, slots=True)
class _Others:
    """Workers of other models than the one that is priced."""

    workers: tuple[WorkerSnapshot, ...]

    def leave(self, machine: Machine) -> Machine:
        """The machine without the weights that they map, which it counts as available."""
        left = machine.ram_available_bytes - self.mapped_bytes
        return dataclasses.replace(machine, ram_available_bytes=left)

    def lower(self, limits: Limits) -> Limits:
        """The user's caps without what they hold beneath them."""
        held = self.gpu_bytes
        gpus = tuple(
            dataclasses.replace(one, cap_bytes=_rest(one.cap_bytes, held.get(one.device, 0)))
            for one in limits.gpus
        )
        cap = _rest(limits.ram_cap_bytes, self.own_bytes + self.mapped_bytes)
        return dataclasses.replace(limits, ram_cap_bytes=cap, gpus=gpus)

    @property
    def own_bytes(self) -> int:
        return sum(worker.own_bytes for worker in self.workers)

    @property
    def mapped_bytes(self) -> int:
        return sum(
            max(0, worker.taken_bytes.get(RAM, 0) - worker.own_bytes) for worker in self.workers
        )

    @property
    def gpu_bytes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for worker in self.workers:
            for device, size in worker.taken_bytes.items():
                if device != RAM:
                    found[device] = found.get(device, 0) + size
        return found


def _others(snapshot: Snapshot, worker: WorkerSnapshot | None) -> _Others:
    return _Others(tuple(one for one in snapshot.workers if one is not worker))


def _rest(cap_bytes: int, held_bytes: int) -> int:
    return max(1, cap_bytes - held_bytes) if cap_bytes else 0  # 0 would mean no cap


def _worker_of(spec: ModelSpec | None, snapshot: Snapshot) -> WorkerSnapshot | None:
    gone = {WorkerState.UNLOADED, WorkerState.FAILED}
    for worker in snapshot.workers:
        if spec is not None and worker.model_id == spec.model_id and worker.state not in gone:
            return worker
    return None


def _as_if_unloaded(machine: Machine, worker: WorkerSnapshot | None) -> Machine:
    if worker is None:
        return machine
    on_gpus = {name: size for name, size in worker.taken_bytes.items() if name != RAM}
    return machine.giving_back(worker.own_bytes, on_gpus)


def _bars(
    machine: Machine,
    limits: Limits,
    others: _Others,
    plan: MemoryPlan,
    fits: tuple[Fit, ...],
    worker: WorkerSnapshot | None,
) -> tuple[Bar, ...]:
    verdicts = {fit.device: fit for fit in fits}
    taken = dict(worker.taken_bytes) if worker is not None else {}
    used = machine.ram_total_bytes - machine.ram_available_bytes + others.mapped_bytes
    room = max(0, machine.ram_total_bytes - used - limits.ram_reserve_bytes)
    cap = _capped(room, limits.ram_cap_bytes, others.own_bytes + others.mapped_bytes)
    found = [
        _bar(
            RAM,
            "RAM",
            machine.ram_total_bytes,
            used,
            limits.ram_reserve_bytes,
            plan,
            cap,
            taken,
            verdicts,
        )
    ]
    for gpu in machine.gpus:
        if gpu.is_integrated or not gpu.is_usable:
            continue
        limit = limits.gpu(gpu.device)
        may = min(gpu.total_bytes - limit.reserve_bytes, gpu.free_bytes - limit.margin_bytes)
        cap = _capped(max(0, may), limit.cap_bytes, others.gpu_bytes.get(gpu.device, 0))
        found.append(
            _bar(
                gpu.device,
                f"{gpu.name} ({gpu.device})" if gpu.name else gpu.device,
                gpu.total_bytes,
                gpu.total_bytes - gpu.free_bytes,
                limit.reserve_bytes,
                plan,
                cap,
                taken,
                verdicts,
            )
        )
    return tuple(found)


def _bar(
    device: str,
    title: str,
    total: int,
    others: int,
    reserve: int,
    plan: MemoryPlan,
    cap: int,
    taken: Mapping[str, int],
    verdicts: Mapping[str, Fit],
) -> Bar:
    fit = verdicts.get(device)
    return Bar(
        device=device,
        title=title,
        total_bytes=total,
        others_bytes=others,
        reserve_bytes=reserve,
        part=plan.device(device),
        cap_bytes=fit.cap_bytes if fit else cap,
        taken_bytes=taken.get(device),
        fits=fit.fits if fit else True,
        sentence=fit.sentence if fit else "",
    )


def _capped(room: int, user_cap: int, live: int) -> int:
    return min(room, max(0, user_cap - live)) if user_cap else room


def _of_machine(limits: Limits, bars: tuple[Bar, ...]) -> dict[str, object]:
    found: dict[str, object] = {"memory.ram_reserve_bytes": limits.ram_reserve_bytes}
    for bar in bars:
        if bar.device == RAM:
            found["memory.ram_cap_bytes"] = bar.cap_bytes
        else:
            found[f"memory.gpu_caps_bytes.{bar.device}"] = bar.cap_bytes
            found[f"memory.gpu_reserve_bytes.{bar.device}"] = limits.gpu(bar.device).reserve_bytes
    return found


def _of_choice(choice: Choice) -> dict[str, object]:
    load = choice.load
    if load.gpu_layers == 0:
        placement = "cpu_only"
    else:
        placement = "may_use_ram" if load.experts_in_ram else "gpu_only"
    return {
        "model.context_tokens": load.context_tokens,
        "model.slots": load.slots,
        "model.kv_type": load.kv_type_k,
        "model.threads": load.threads,
        "model.placement": placement,
    }
