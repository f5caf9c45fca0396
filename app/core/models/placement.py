"""Which layers go to which GPU, and what stays in RAM. Pure; called by `presets.choose`.

A model that can run on the GPUs with a short context is never pushed into RAM for the sake of a
longer one: that is the silent fallback that freezes desktops. Only a model whose weights are too
large for the GPUs is split, experts first, and the user is told what speed to expect.
"""

import dataclasses
from dataclasses import dataclass

from app.core.hardware.machine import Gpu, Machine
from app.core.models.judge import RAM
from app.core.models.limits import Limits
from app.core.models.load_settings import LoadSettings
from app.core.models.pricing import Pricing, largest
from app.core.models.sizes import size_text
from app.core.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """`load` with its layers placed; `gpus` are the devices that it counts on, in order."""

    load: LoadSettings
    gpus: tuple[str, ...]
    reason: str

    @property
    def is_split(self) -> bool:
        """Whether GPUs and processor share the work of a token."""
        return bool(self.load.experts_in_ram)


@dataclass(frozen=True, slots=True)
class Probes:
    """The figures that GPUs are filled beside.

    Attributes:
        wanted: all that is wished for.
        least: the shortest context and fewest slots that would do: what fits a GPU with these is
            kept on it whole.
        split: beside what a model is split that is too large for its GPUs.
    """

    wanted: LoadSettings
    least: LoadSettings
    split: LoadSettings


def candidate_gpus(machine: Machine) -> tuple[Gpu, ...]:
    """GPUs that a model is put on: cards, and integrated ones only where there is no card."""
    usable = machine.usable_gpus
    return tuple(gpu for gpu in usable if not gpu.is_integrated) or usable


def place(
    spec: ModelSpec,
    machine: Machine,
    limits: Limits,
    probes: Probes,
    wish: str,
    spill_limit_bytes: int = 0,
) -> Placement:
    """Where the layers of a model go.

    Args:
        spec: the model.
        machine: where it is to run.
        limits: caps and reserves of the machine, no mood in them.
        probes: the figures that GPUs are filled beside.
        wish: the user's `model.placement`.
        spill_limit_bytes: RAM that layers may take beside GPUs; 0 for whatever fits.
    """
    gpus = () if wish == "cpu_only" else candidate_gpus(machine)
    if not gpus:
        return _processor_only(machine, probes.least, wish)
    names = tuple(gpu.device for gpu in gpus)
    pricing = Pricing(spec, machine, limits, names)
    shares = _shares(gpus, limits)
    together = shares if len(shares) > 1 else ()
    alone = _alone(shares) if together else []
    # One GPU where it holds all that is wanted: fewer hops make faster tokens. Else all of them.
    for probe, splits in ((probes.wanted, [*alone, together]), (probes.least, [together, *alone])):
        for split in splits:
            load = dataclasses.replace(probe, gpu_layers=spec.layers + 1, tensor_split=split)
            if pricing.fits_gpus(load):
                used = [name for name, share in zip(names, split or (1,), strict=True) if share]
                return Placement(load, names, f"All layers on {' and '.join(used)}.")
    whole = dataclasses.replace(probes.split, gpu_layers=spec.layers + 1, tensor_split=together)
    if wish == "gpu_only":
        reason = f"All layers on {' and '.join(names)}, as set, though they do not fit."
        return Placement(whole, names, reason)
    return _split_with_ram(pricing, whole, shares, spill_limit_bytes)


def _processor_only(machine: Machine, probe: LoadSettings, wish: str) -> Placement:
    load = dataclasses.replace(probe, gpu_layers=0, tensor_split=(), experts_in_ram=0)
    if wish == "cpu_only":
        return Placement(load, (), "Runs on the processor alone, as set.")
    idle = next((gpu for gpu in machine.gpus if not gpu.is_usable), None)
    if idle is not None:
        return Placement(
            load, (), f"Runs on the processor: {idle.name} is not used, {idle.reason}."
        )
    return Placement(load, (), "Runs on the processor: there is no GPU that can be used.")


def _shares(gpus: tuple[Gpu, ...], limits: Limits) -> tuple[float, ...]:
    """How much each GPU may take, as shares of the whole."""
    rooms = []
    for gpu in gpus:
        limit = limits.gpu(gpu.device)
        room = min(gpu.total_bytes - limit.reserve_bytes, gpu.free_bytes - limit.margin_bytes)
        rooms.append(max(0, min(room, limit.cap_bytes) if limit.cap_bytes else room))
    whole = sum(rooms) or 1
    return tuple(round(room / whole, 3) for room in rooms)


def _alone(shares: tuple[float, ...]) -> list[tuple[float, ...]]:
    """All layers on one GPU, for each of them, the roomiest first."""
    order = sorted(range(len(shares)), key=lambda index: -shares[index])
    return [tuple(1.0 if index == one else 0.0 for index in range(len(shares))) for one in order]


def _split_with_ram(
    pricing: Pricing, whole: LoadSettings, shares: tuple[float, ...], spill_limit_bytes: int
) -> Placement:
    spec, names = pricing.spec, pricing.gpus
    where = " and ".join(names)
    load = _experts_in_ram(pricing, whole, shares)
    if load is not None:
        reason = (
            f"The experts of {load.experts_in_ram} of {spec.layers} layers stay in RAM, all else "
            f"is on {where}: so a token reads the least from RAM."
        )
    else:
        layers = largest(
            1,
            spec.layers,
            lambda n: pricing.fits_gpus(dataclasses.replace(whole, gpu_layers=n)),
        )
        load = dataclasses.replace(whole, gpu_layers=layers)
        reason = (
            f"{layers} of {spec.layers + 1} layers on {where}, the rest in RAM: the weights are "
            "too large for the GPU memory that there is."
        )
    spilled = pricing.plan(load).device(RAM).weights_bytes
    if spill_limit_bytes and spilled > spill_limit_bytes:
        reason = (
            f"{size_text(spilled)} of the layers would have to stay in RAM, more than the "
            f"{size_text(spill_limit_bytes)} that you allow: left on {where}."
        )
        return Placement(whole, names, reason)
    return Placement(load, names, reason)


def _experts_in_ram(
    pricing: Pricing, whole: LoadSettings, shares: tuple[float, ...]
) -> LoadSettings | None:
    """All layers on the GPUs but for the experts of as few as will do; None where it cannot be."""
    spec = pricing.spec
    if spec.header is None or not spec.header.integer(f"{spec.architecture}.expert_count"):
        return None

    def with_experts_of(layers: int) -> LoadSettings:
        """The experts of the last `layers` on the GPUs, shared out by the room they have."""
        first = spec.layers - layers
        split: tuple[float, ...] = ()
        if len(shares) > 1:
            # Layers without their experts are light: they all go to the first GPU.
            counts = [layers * share for share in shares]
            counts[0] += first
            split = tuple(round(count / spec.layers, 3) for count in counts)
        return dataclasses.replace(whole, experts_in_ram=first, tensor_split=split)

    most = largest(0, spec.layers, lambda n: pricing.fits_gpus(with_experts_of(n)))
    load = with_experts_of(most)
    return load if pricing.fits_gpus(load) else None
