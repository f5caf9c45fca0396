"""What would fit where something does not: fewer slots, a shorter context, or a smaller file. Pure.

Called with the refused figures by the supervisor, the panel and `coolhead plan`. The order of what is
given up: slots before a good context, the context before the precision of the KV cache, all of them
before another file. Layers are moved to RAM only where nothing else helps, and it is said.
"""

import dataclasses
from collections.abc import Sequence

from app.core.hardware.machine import Machine
from app.core.models.choice import Proposal
from app.core.models.judge import RAM, judge
from app.core.models.limits import Limits
from app.core.models.load_settings import LoadSettings
from app.core.models.placement import Probes, candidate_gpus, place
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.plan_kv import coarser
from app.core.models.presets_file import presets
from app.core.models.pricing import Pricing
from app.core.models.spec import ModelSpec

LEAST_CONTEXT_TOKENS = 512
CONTEXT_STEP_TOKENS = 512
COARSEST = "Q3_K_M"
"""Nobody is told to take a coarser file while a shorter context would do."""


def propose(
    spec: ModelSpec,
    settings: LoadSettings,
    machine: Machine,
    limits: Limits,
    gpus: Sequence[str] | None = None,
) -> Proposal | None:
    """The best figures that fit in place of `settings`, and the other ways out; None for no way.

    Args:
        spec: the model.
        settings: the figures that were refused.
        machine: where they were to run.
        limits: caps and reserves.
        gpus: the devices that `settings` counts on; by default those a preset would use.
    """
    devices = tuple(gpu.device for gpu in candidate_gpus(machine)) if gpus is None else tuple(gpus)
    pricing = Pricing(spec, machine, limits, devices if settings.gpu_layers else ())
    found = _figures(pricing, settings)
    moved = ""
    if found is None and settings.gpu_layers and machine.gpus:
        found, pricing, moved = _with_ram(pricing, settings)
    smaller = _next_quantization(pricing, settings, presets().bits(COARSEST) if found else 0)
    if found is None and not smaller:
        return None
    if found is None:
        return Proposal(settings, (), smaller, 0, f"Nothing of this file fits; {smaller} would.")
    ways = [_in_words(found, settings) + moved, *_other_ways(pricing, settings, found)]
    if smaller:
        ways.append(f"{smaller} with all that was asked")
    return Proposal(
        found,
        _changes(found, settings),
        smaller,
        pricing.fit(found).needed_bytes,
        f"What fits: {'; or '.join(ways)}.",
    )


def _figures(pricing: Pricing, asked: LoadSettings) -> LoadSettings | None:
    """Slots first, then context, then KV type, on the same devices."""
    good = min(asked.context_tokens, presets().good_context_tokens)
    for kept in _with_kv_types(pricing.spec, asked):
        if kept != asked and pricing.fits(kept):
            return kept
        slots = pricing.most_slots(dataclasses.replace(kept, context_tokens=good))
        least = good if slots else min(LEAST_CONTEXT_TOKENS, good)
        load = dataclasses.replace(kept, slots=slots or 1)
        context = pricing.largest_context(load, asked.context_tokens, least, CONTEXT_STEP_TOKENS)
        if context:
            return dataclasses.replace(load, context_tokens=context)
    return None


def _with_kv_types(spec: ModelSpec, asked: LoadSettings) -> list[LoadSettings]:
    narrow = coarser(spec.shape, asked) if asked.kv_type_k in {"f32", "f16", "bf16"} else None
    return [asked] if narrow is None else [asked, narrow]


def _with_ram(pricing: Pricing, asked: LoadSettings) -> tuple[LoadSettings | None, Pricing, str]:
    """A part of the layers in RAM, or all of them, where the GPUs are too small for any figures."""
    least = min(asked.context_tokens, presets().least_context_tokens)
    probe = dataclasses.replace(asked, context_tokens=least, slots=1)
    for wish in ("may_use_ram", "cpu_only"):
        placed = place(
            pricing.spec, pricing.machine, pricing.limits, Probes(asked, probe, probe), wish
        )
        other = dataclasses.replace(pricing, gpus=placed.gpus)
        load = dataclasses.replace(
            placed.load, context_tokens=asked.context_tokens, slots=asked.slots
        )
        found = load if other.fits(load) else _figures(other, load)
        if found is not None:
            where = "partly" if found.gpu_layers else "wholly"
            return found, other, f", {where} in RAM and slow"
    return None, pricing, ""


def _in_words(load: LoadSettings, asked: LoadSettings) -> str:
    slots = "1 slot" if load.slots == 1 else f"{load.slots} slots"
    kv = f" with a KV cache in {load.kv_type_k}" if load.kv_type_k != asked.kv_type_k else ""
    return f"{slots} of {load.context_tokens:,} tokens{kv}"


def _other_ways(pricing: Pricing, asked: LoadSettings, found: LoadSettings) -> list[str]:
    """The longest context for all slots, and for one; the most slots at the asked context."""
    ways: list[LoadSettings] = []
    most_slots = pricing.most_slots(asked)
    if most_slots:
        ways.append(dataclasses.replace(asked, slots=most_slots))
    for slots in {asked.slots} if most_slots else {asked.slots, 1}:
        load = dataclasses.replace(asked, slots=slots)
        context = pricing.largest_context(
            load, asked.context_tokens, LEAST_CONTEXT_TOKENS, CONTEXT_STEP_TOKENS
        )
        if context:
            ways.append(dataclasses.replace(load, context_tokens=context))
    narrow = coarser(pricing.spec.shape, asked)
    if narrow is not None and narrow != asked and pricing.fits(narrow):
        ways.append(narrow)
    told = []
    for load in sorted(ways, key=lambda way: -way.slots):
        words = _in_words(load, asked)
        if load != found and words not in told:
            told.append(words)
    return told


def _next_quantization(pricing: Pricing, asked: LoadSettings, least_bits: float) -> str:
    """The best quantization below this file's with which all that was asked would fit; or ""."""
    spec = pricing.spec
    if not spec.parameters:
        return ""
    bits = spec.size_bytes * 8 / spec.parameters
    plan = pricing.plan(asked)
    for each in presets().quantizations:
        # Files of one mixture differ by some percent; a step must be a clear one.
        if each.bits > bits * 0.95 or each.bits < least_bits:
            continue
        smaller = scaled(plan, each.bits / bits)
        if judge(smaller, pricing.machine, pricing.limits).fits:
            return each.name
    return ""


def scaled(plan: MemoryPlan, ratio: float) -> MemoryPlan:
    """The plan of the same model with weights of another size."""
    devices = tuple(
        dataclasses.replace(part, weights_bytes=int(part.weights_bytes * ratio))
        for part in plan.devices
    )
    mapped = int(plan.mapped_bytes * ratio)
    before, after = _ram_weights(plan.devices), _ram_weights(devices)
    copied = (before - plan.mapped_bytes) - (after - mapped)
    return dataclasses.replace(
        plan, devices=devices, mapped_bytes=mapped, own_bytes=plan.own_bytes - max(0, copied)
    )


def _ram_weights(devices: Sequence[DevicePlan]) -> int:
    return sum(part.weights_bytes for part in devices if part.device == RAM)


def _changes(found: LoadSettings, asked: LoadSettings) -> tuple[tuple[str, int | str], ...]:
    """The settings that lead to `found`; all three figures, so that no preset moves another."""
    changes: list[tuple[str, int | str]] = [
        ("model.context_tokens", found.context_tokens),
        ("model.slots", found.slots),
    ]
    kv = found.kv_type_k
    if kv in {"f16", "q8_0", "q4_0"}:
        changes.append(("model.kv_type", kv))
    if found.gpu_layers != asked.gpu_layers or found.experts_in_ram != asked.experts_in_ram:
        changes.append(("model.placement", "may_use_ram" if found.gpu_layers else "cpu_only"))
    return tuple(changes)
