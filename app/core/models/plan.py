"""What a load takes, per device and in bytes, before it is made.

Pure; called by the page's sliders, the presets and admission. The formula is calibrated against
the engine's own dry run (`dry_run.py`), which decides before a load.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from app.core.models.load_settings import LoadSettings
from app.core.models.plan_companions import Companion, companions
from app.core.models.plan_compute import (
    GPU_CONTEXT_BYTES,
    PROCESS_BYTES,
    SERVER_BYTES,
    compute_bytes,
    engine_bytes,
    host_input_bytes,
    output_bytes,
)
from app.core.models.plan_kv import checkpoint_bytes, kv_type_problem, layer_kv_bytes
from app.core.models.plan_place import Placement, place
from app.core.models.plan_shape import Shape
from app.core.models.plan_weights import place_weights
from app.core.models.spec import ModelSpec

PlanSource = Literal["formula", "dry_run", "engine"]
RAM = "RAM"
# The bars that the formula is held to against the dry run, on architectures that it knows.
FORMULA_MARGIN_PERCENT = 15.0
UNKNOWN_MARGIN_PERCENT = 50.0


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What is taken of one memory.

    Attributes:
        device: "RAM", or the engine's name of a GPU ("CUDA0").
        weights_bytes: model, adapters, vision encoder and draft model.
        kv_bytes: KV caches and recurrent state.
        compute_bytes: the buffer that a step is computed in.
        output_bytes: logits and embeddings handed out.
        cache_bytes: prompt cache and context checkpoints.
        overhead_bytes: the engine itself, its libraries, driver contexts.
    """

    device: str
    weights_bytes: int = 0
    kv_bytes: int = 0
    compute_bytes: int = 0
    output_bytes: int = 0
    cache_bytes: int = 0
    overhead_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return (
            self.weights_bytes
            + self.kv_bytes
            + self.compute_bytes
            + self.output_bytes
            + self.cache_bytes
            + self.overhead_bytes
        )


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a load takes.

    Attributes:
        devices: RAM first, then GPUs in the engine's order.
        own_bytes: host memory that the worker owns (cannot be dropped without swap).
        mapped_bytes: weights mapped from the file; the kernel can drop and re-read them.
        margin_percent: how far off the source is known to be, at most.
        note: what a person must know of this plan; empty where there is nothing.
    """

    devices: tuple[DevicePlan, ...]
    own_bytes: int
    mapped_bytes: int
    source: PlanSource
    margin_percent: float
    note: str = ""

    def device(self, name: str) -> DevicePlan:
        """The part on one device; an empty one where there is none."""
        for part in self.devices:
            if part.device == name:
                return part
        return DevicePlan(name)


def plan_memory(spec: ModelSpec, settings: LoadSettings, gpus: Sequence[str] = ()) -> MemoryPlan:
    """Price a load by formula; under a millisecond.

    No file is touched, except for the headers of a vision encoder, a draft model or adapters that
    `settings` names (kept once read).

    Args:
        spec: the model.
        settings: how it would be loaded.
        gpus: the engine's names of the GPUs to use, in order; none for CPU only.

    Raises:
        ModelFileMissing: a file that `settings` names is gone.
        ModelFileInvalid: it is damaged.
    """
    plan = _plan_model(spec, settings, gpus)
    for part in companions(settings):
        if part.kind == "draft":
            alone = replace(
                settings, draft="", mmproj="", adapters=(), prompt_cache_bytes=0, checkpoints=0
            )
            plan = _joined(plan, _without_process(_plan_model(part.spec, alone, gpus)))
        else:
            plan = _joined(plan, _copied(part, settings, gpus))
    return plan


def _plan_model(spec: ModelSpec, settings: LoadSettings, gpus: Sequence[str]) -> MemoryPlan:
    shape = spec.shape
    if shape is None:
        return _rough(spec, settings, gpus)
    placement = place(shape, settings, gpus)
    weights = place_weights(shape, settings, placement, len(gpus))
    used = sorted({*placement.layers, placement.output} - {-1})
    devices = [
        DevicePlan(
            RAM,
            weights.mapped_bytes + weights.owned_bytes,
            _kv_bytes(shape, settings, placement, -1),
            _compute_bytes(shape, settings, placement, -1)
            + (host_input_bytes(shape, settings) if used else 0),
            output_bytes(shape, settings),
            settings.prompt_cache_bytes + checkpoint_bytes(shape, settings),
            engine_bytes(shape, settings, len(used)),
        )
    ]
    for number, name in enumerate(gpus):
        if number not in used:
            devices.append(DevicePlan(name))
            continue
        devices.append(
            DevicePlan(
                name,
                weights.gpus_bytes[number],
                _kv_bytes(shape, settings, placement, number),
                _compute_bytes(shape, settings, placement, number),
                overhead_bytes=GPU_CONTEXT_BYTES,
            )
        )
    note, margin = kv_type_problem(shape, settings), FORMULA_MARGIN_PERCENT
    if not shape.is_known:
        margin = UNKNOWN_MARGIN_PERCENT
        note = (
            f"The architecture {spec.architecture or 'of this file'} is not known here: this is a "
            "rough figure, and only the engine's dry run prices it."
        )
    mapped = weights.mapped_bytes
    own = devices[0].total_bytes - mapped
    return MemoryPlan(tuple(devices), own, mapped, "formula", margin, note)


def _kv_bytes(shape: Shape, settings: LoadSettings, placement: Placement, device: int) -> int:
    return sum(
        layer_kv_bytes(layer, shape, settings)
        for layer, at in zip(shape.layers, placement.layers, strict=True)
        if at == device
    )


def _compute_bytes(shape: Shape, settings: LoadSettings, placement: Placement, device: int) -> int:
    layers = [
        layer for layer, at in zip(shape.layers, placement.layers, strict=True) if at == device
    ]
    return compute_bytes(shape, settings, layers)


def _joined(one: MemoryPlan, other: MemoryPlan) -> MemoryPlan:
    """Both together, device by device; the wider margin and both notes."""
    devices = tuple(
        DevicePlan(
            a.device,
            a.weights_bytes + b.weights_bytes,
            a.kv_bytes + b.kv_bytes,
            a.compute_bytes + b.compute_bytes,
            a.output_bytes + b.output_bytes,
            a.cache_bytes + b.cache_bytes,
            a.overhead_bytes + b.overhead_bytes,
        )
        for a, b in zip(one.devices, other.devices, strict=True)
    )
    return MemoryPlan(
        devices,
        one.own_bytes + other.own_bytes,
        one.mapped_bytes + other.mapped_bytes,
        one.source,
        max(one.margin_percent, other.margin_percent),
        " ".join(note for note in (one.note, other.note) if note),
    )


def _without_process(plan: MemoryPlan) -> MemoryPlan:
    """A draft model lives in its model's process and on the same contexts."""
    overhead = plan.devices[0].overhead_bytes
    devices = tuple(replace(part, overhead_bytes=0) for part in plan.devices)
    return replace(plan, devices=devices, own_bytes=plan.own_bytes - overhead)


def _copied(part: Companion, settings: LoadSettings, gpus: Sequence[str]) -> MemoryPlan:
    """A vision encoder or an adapter: copied, to the first GPU where one is in use."""
    device = gpus[0] if gpus and settings.gpu_layers > 0 else RAM
    devices = tuple(
        DevicePlan(name, weights_bytes=part.weights_bytes, compute_bytes=part.compute_bytes)
        if name == device
        else DevicePlan(name)
        for name in (RAM, *gpus)
    )
    return MemoryPlan(devices, devices[0].total_bytes, 0, "formula", FORMULA_MARGIN_PERCENT)


def _rough(spec: ModelSpec, settings: LoadSettings, gpus: Sequence[str]) -> MemoryPlan:
    """A model without a GGUF header: its files, and a cache guessed from its size."""
    kv = spec.layers * 2 * 2 * 1024 * settings.engine_context_tokens
    first = DevicePlan(
        RAM,
        weights_bytes=spec.size_bytes,
        kv_bytes=kv,
        compute_bytes=spec.size_bytes // 20,
        overhead_bytes=PROCESS_BYTES + SERVER_BYTES,
    )
    note = f"A model in the {spec.format} format: these figures are rough."
    devices = (first, *(DevicePlan(name) for name in gpus))
    return MemoryPlan(devices, first.total_bytes, 0, "formula", UNKNOWN_MARGIN_PERCENT, note)
