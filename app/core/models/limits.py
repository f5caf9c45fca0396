"""How much of each memory models may take here: the user's caps and the desktop's reserves. Pure.

Made from settings and machine, given to `fit.judge` and `presets.choose`. Reserves that the user has
not set follow the machine.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.hardware.machine import Gpu, Machine
from app.core.lines import desktop_reserve
from app.core.settings import Settings
from app.core.settings_meta import MIB

DISPLAY_RESERVE_SHARE = 0.08
DISPLAY_RESERVE_MIN_BYTES = 512 * MIB
DISPLAY_RESERVE_MAX_BYTES = 1536 * MIB
"""Compositor, browser and a video call on the card that drives the screen."""

BARE_RESERVE_BYTES = 256 * MIB
"""A card without a screen: the driver's own pages, and allocations that do not pack."""

GPU_MARGIN_BYTES = 128 * MIB
"""Kept of what is free now: other programs breathe between the reading and the load."""


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """What holds on one GPU, in bytes; a cap of 0 is none."""

    device: str
    reserve_bytes: int
    cap_bytes: int = 0
    margin_bytes: int = GPU_MARGIN_BYTES


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds on this machine, in bytes; a cap of 0 is none."""

    ram_reserve_bytes: int
    ram_cap_bytes: int = 0
    gpus: tuple[GpuLimit, ...] = ()

    def gpu(self, device: str) -> GpuLimit:
        """The limits of a device; those of a bare card where it is not known."""
        for limit in self.gpus:
            if limit.device == device:
                return limit
        return GpuLimit(device, BARE_RESERVE_BYTES)


def beside(limits: Limits, ram_bytes: int, gpu_bytes: Mapping[str, int]) -> Limits:
    """What is left beneath the user's caps beside running workers, for a search that knows none.

    Args:
        limits: that hold for all workers together.
        ram_bytes: what they own and map in RAM.
        gpu_bytes: what they hold on each device.
    """
    return Limits(
        limits.ram_reserve_bytes,
        _less(limits.ram_cap_bytes, ram_bytes),
        tuple(
            dataclasses.replace(
                each, cap_bytes=_less(each.cap_bytes, gpu_bytes.get(each.device, 0))
            )
            for each in limits.gpus
        ),
    )


def limits_from(settings: Settings, machine: Machine) -> Limits:
    """The user's caps and reserves, and what follows from the machine where none is set."""
    memory = settings.memory
    return Limits(
        ram_reserve_bytes=memory.ram_reserve_bytes or desktop_reserve(machine.ram_total_bytes),
        ram_cap_bytes=memory.ram_cap_bytes,
        gpus=tuple(
            GpuLimit(
                gpu.device,
                memory.gpu_reserve_bytes.get(gpu.device) or default_gpu_reserve(gpu),
                memory.gpu_caps_bytes.get(gpu.device, 0),
                0 if gpu.is_integrated else GPU_MARGIN_BYTES,
            )
            for gpu in machine.gpus
        ),
    )


def narrowed(limits: Limits, machine: Machine, ram_share: float, gpu_share: float) -> Limits:
    """Limits that leave models only a share (0 to 1) of what `limits` would leave them."""
    ram_bytes = max(0, machine.ram_available_bytes - limits.ram_reserve_bytes)
    gpus = []
    for gpu in machine.gpus:
        limit = limits.gpu(gpu.device)
        left = min(gpu.total_bytes - limit.reserve_bytes, gpu.free_bytes - limit.margin_bytes)
        gpus.append(
            dataclasses.replace(limit, cap_bytes=_lower(limit.cap_bytes, int(left * gpu_share)))
        )
    return Limits(
        limits.ram_reserve_bytes,
        _lower(limits.ram_cap_bytes, int(ram_bytes * ram_share)),
        tuple(gpus),
    )


def _less(cap_bytes: int, held_bytes: int) -> int:
    return max(1, cap_bytes - held_bytes) if cap_bytes else 0  # 0 would mean no cap


def _lower(cap_bytes: int, other_bytes: int) -> int:
    other_bytes = max(1, other_bytes)  # 0 would mean no cap
    return min(cap_bytes, other_bytes) if cap_bytes else other_bytes


def default_gpu_reserve(gpu: Gpu) -> int:
    """Memory of a GPU kept for the desktop, in bytes."""
    if gpu.is_integrated:
        return 0  # its memory is RAM, whose own reserve stands in
    if not gpu.has_display:
        return BARE_RESERVE_BYTES
    wanted = int(gpu.total_bytes * DISPLAY_RESERVE_SHARE)
    return max(DISPLAY_RESERVE_MIN_BYTES, min(DISPLAY_RESERVE_MAX_BYTES, wanted))
