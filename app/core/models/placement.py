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


def candidate_gpus(machine: Machine) -> tuple[Gpu, ...]:
    """GPUs that a model is put on: cards, and integrated ones only where there is no card."""
    usable = machine.usable_gpus
    return tuple(gpu for gpu in usable if not gpu.is_integrated) or usable


def place(
    spec: ModelSpec,
    machine: Machine,
    limits: Limits,
    probe: LoadSettings,
    wish: str,
    spill_limit_bytes: int,
) -> Placement:
    """Where the layers of a model go.

    Args:
        spec: the model.
        machine: where it is to run.
        limits: caps and reserves of the machine, no mood in them.
        probe: the shortest context and fewest slots that would do; GPUs are filled beside these.
        wish: the user's `model.placement`.
        spill_limit_bytes: RAM that layers may take beside GPUs; 0 for whatever fits.
    """
    gpus = () if wish == "cpu_only" else candidate_gpus(machine)
    if not gpus:
        return _processor_only(machine, probe, wish)
    names = tuple(gpu.device for gpu in gpus)
    pricing = Pricing(spec, machine, limits, names)
    shares = _shares(gpus, limits)
    whole = dataclasses.replace(probe, gpu_layers=spec.layers + 1)
    for split in _splits(shares):
        load = dataclasses.replace(whole, tensor_split=split)
        if pricing.fits_gpus(load):
            used = [name for name, share in zip(names, split or (1.0,), strict=False) if share]
            return Placement(load, names, f"All layers on {' and '.join(used)}: they fit.")
    load = dataclasses.replace(whole, tensor_split=shares if len(shares) > 1 else ())
    if wish == "gpu_only":
        reason = f"All layers on {' and '.join(names)}, as set, though they do not fit."
        return Placement(load, names, reason)
    return _split_with_ram(pricing, load, spill_limit_bytes)


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


def _splits(shares: tuple[float, ...]) -> list[tuple[float, ...]]:
    """Each GPU alone, the roomiest first, then all together: fewer hops make faster tokens."""
    if len(shares) == 1:
        return [()]
    order = sorted(range(len(shares)), key=lambda index: -shares[index])
    alone = [tuple(1.0 if index == one else 0.0 for index in range(len(shares))) for one in order]
    return [*alone, shares]


def _split_with_ram(pricing: Pricing, whole: LoadSettings, spill_limit_bytes: int) -> Placement:
    spec, names = pricing.spec, pricing.gpus
    where = " and ".join(names)
    experts = spec.header.integer(f"{spec.architecture}.expert_count") if spec.header else 0
    load = None
    if experts:
        stay = largest(
            0,
            spec.layers,
            lambda n: pricing.fits_gpus(dataclasses.replace(whole, experts_in_ram=spec.layers - n)),
        )
        tried = dataclasses.replace(whole, experts_in_ram=spec.layers - stay)
        if pricing.fits_gpus(tried):
            load = tried
            reason = (
                f"The experts of {spec.layers - stay} of {spec.layers} layers stay in RAM, all else "
                f"is on {where}: so a token reads the least from RAM."
            )
    if load is None:
        layers = largest(
            1,
            spec.layers,
            lambda n: pricing.fits_gpus(dataclasses.replace(whole, gpu_layers=n)),
        )
        load = dataclasses.replace(whole, gpu_layers=layers)
        reason = (
            f"{layers} of {spec.layers + 1} layers on {where}, the rest in RAM: the weights are "
            "too large for it."
        )
    spilled = pricing.plan(load).device(RAM).weights_bytes
    if spill_limit_bytes and spilled > spill_limit_bytes:
        reason = (
            f"{size_text(spilled)} of the layers would have to stay in RAM, more than the "
            f"{size_text(spill_limit_bytes)} that you allow: left on {where}."
        )
        return Placement(whole, names, reason)
    return Placement(load, names, reason)
