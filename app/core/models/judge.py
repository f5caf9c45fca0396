"""Whether a memory plan fits this machine: the rule that refuses, with its sum. Pure.

Asked before each load by the supervisor, at each move of a slider by the panel, and by
`coolhead plan`. What would fit instead is `propose.py`'s business.

The rule. Device part <= min(total - reserve, free - margin), and beneath the user's cap with what
our workers hold there already. Host part, own + mapped <= available - mapped weights of live workers
- reserve: the kernel's "available" does not see mapped weights. Swap is never counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.hardware.machine import Gpu, Machine
from app.core.models.limits import Limits
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.sizes import size_text

RAM = "RAM"
SURE_MARGIN_PERCENT = 20.0


@dataclass(frozen=True, slots=True)
class Fit:
    """The verdict on the tightest memory. Sizes in bytes.

    Attributes:
        device: where it is tightest; where it does not fit, if it does not.
        needed_bytes: what the plan takes there, its margin included.
        available_bytes: what could be had there before the reserve is kept.
        reserve_bytes: what is kept for the desktop.
        cap_bytes: what models may still take there; `needed_bytes` must not exceed it.
        sentence: the sum in words.
        most_bytes: what models could take there with nothing else running; -1 for not known.
    """

    fits: bool
    device: str
    needed_bytes: int
    available_bytes: int
    reserve_bytes: int
    cap_bytes: int
    sentence: str
    most_bytes: int = -1

    @property
    def is_hopeless(self) -> bool:
        """Whether it would not fit either if everything else were closed."""
        return not self.fits and 0 <= self.most_bytes < self.needed_bytes

    @property
    def headroom_bytes(self) -> int:
        """What would be left of `cap_bytes`; negative where it does not fit."""
        return self.cap_bytes - self.needed_bytes


def judge(
    plan: MemoryPlan,
    machine: Machine,
    limits: Limits,
    live_mapped_bytes: int = 0,
    live_own_bytes: int = 0,
    live_gpu_bytes: Mapping[str, int] | None = None,
) -> Fit:
    """The verdict on `plan`: that of the first memory it does not fit, else of the tightest.

    Args:
        plan: what would be loaded.
        machine: as it is now, what is running included.
        limits: the caps and reserves that hold.
        live_mapped_bytes: weights that running workers map, all together.
        live_own_bytes: what running workers own in RAM, all together; counts against the user's cap
            only, since `ram_available_bytes` has it subtracted already.
        live_gpu_bytes: what running workers hold on each device; counts against the caps there.
    """
    fits = judge_all(plan, machine, limits, live_mapped_bytes, live_own_bytes, live_gpu_bytes or {})
    return min(fits, key=lambda fit: (fit.fits, fit.headroom_bytes))


def judge_all(
    plan: MemoryPlan,
    machine: Machine,
    limits: Limits,
    live_mapped_bytes: int = 0,
    live_own_bytes: int = 0,
    live_gpu_bytes: Mapping[str, int] | None = None,
) -> tuple[Fit, ...]:
    """A verdict for RAM, and for each GPU that the plan uses, in that order."""
    live_gpu = live_gpu_bytes or {}
    needed = host_bytes(plan, machine)
    own_part = " (its GPU shares this memory)" if needed > _host_only(plan) else ""
    found = [
        _verdict(
            RAM,
            needed,
            machine.ram_available_bytes - live_mapped_bytes,
            machine.ram_available_bytes - live_mapped_bytes - limits.ram_reserve_bytes,
            machine.ram_total_bytes - limits.ram_reserve_bytes,
            limits.ram_reserve_bytes,
            limits.ram_cap_bytes,
            live_own_bytes + live_mapped_bytes,
            own_part,
        )
    ]
    for device in plan.devices:
        if device.device == RAM or not device.total_bytes:
            continue
        gpu = machine.gpu(device.device)
        if gpu is None:
            found.append(_absent(device, plan))
        else:
            found.append(_gpu_verdict(device, gpu, plan, limits, live_gpu.get(gpu.device, 0)))
    return tuple(found)


def host_bytes(plan: MemoryPlan, machine: Machine) -> int:
    """What the plan takes of RAM, its margin included, and GPU parts where GPUs work in RAM."""
    shared = 0
    for device in plan.devices:
        gpu = machine.gpu(device.device)
        if device.device != RAM and gpu is not None and gpu.is_integrated:
            shared += with_margin(device, plan.margin_percent)
    return _host_only(plan) + shared


def with_margin(device: DevicePlan, margin_percent: float) -> int:
    """A device's part; the margin is on all but weights and KV cache, which are known exactly.

    A plan that is rougher than `SURE_MARGIN_PERCENT` is of an architecture that is not known, and its
    KV cache is as unsure as the rest.
    """
    unsure = device.total_bytes - device.weights_bytes
    if margin_percent <= SURE_MARGIN_PERCENT:
        unsure -= device.kv_bytes
    return device.total_bytes + int(unsure * margin_percent / 100)


def _host_only(plan: MemoryPlan) -> int:
    margin = 0
    for part in plan.devices:
        if part.device == RAM:
            margin = with_margin(part, plan.margin_percent) - part.total_bytes
    return plan.own_bytes + plan.mapped_bytes + margin


def _gpu_verdict(
    device: DevicePlan, gpu: Gpu, plan: MemoryPlan, limits: Limits, live_bytes: int
) -> Fit:
    limit = limits.gpu(gpu.device)
    may_take = min(gpu.total_bytes - limit.reserve_bytes, gpu.free_bytes - limit.margin_bytes)
    return _verdict(
        gpu.device,
        with_margin(device, plan.margin_percent),
        min(gpu.total_bytes, gpu.free_bytes),
        may_take,
        gpu.total_bytes - limit.reserve_bytes,
        limit.reserve_bytes,
        limit.cap_bytes,
        live_bytes,
        f" ({gpu.name})" if gpu.name else "",
    )


def _verdict(
    device: str,
    needed: int,
    available: int,
    may_take: int,
    most: int,
    reserve: int,
    user_cap: int,
    live: int,
    note: str,
) -> Fit:
    cap = may_take
    why = f"{size_text(available)} available, {size_text(reserve)} of it kept for the desktop"
    if device != RAM:
        why = f"{size_text(available)} free, {size_text(reserve)} of the card kept for the desktop"
    if user_cap and user_cap - live < may_take:
        cap = user_cap - live
        why = f"your cap of {size_text(user_cap)}"
        if live:
            why += f", {size_text(live)} of it held by running models"
    cap = max(cap, 0)
    may = f"may take {size_text(cap)}" if cap else "nothing is left for models"
    sentence = f"{device}{note}: needs {size_text(needed)}, {may} ({why})."
    most = max(min(most, user_cap or most), 0)
    return Fit(needed <= cap, device, needed, available, reserve, cap, sentence, most)


def _absent(device: DevicePlan, plan: MemoryPlan) -> Fit:
    needed = with_margin(device, plan.margin_percent)
    return Fit(
        False,
        device.device,
        needed,
        0,
        0,
        0,
        f"{device.device}: needs {size_text(needed)}, but this machine has no such GPU now.",
        0,
    )
