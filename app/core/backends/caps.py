"""The caps that a worker is held to, made from its memory plan. Pure; used by every backend."""

from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.guard.protocol import Caps

LEAST_MARGIN_BYTES = 512 * 1024 * 1024
"""Below it a legitimate load at 4 GiB/s was predicted to pass its cap in 7 of 10 runs."""

MARGIN_SHARE = 0.10
SERVER_THREADS = 16
"""Of an engine's own, beside those that compute: HTTP, watchers, the interpreter's."""


def with_margin(planned_bytes: int) -> int:
    """What may be taken where `planned_bytes` are planned."""
    return planned_bytes + max(LEAST_MARGIN_BYTES, int(planned_bytes * MARGIN_SHARE))


def caps_for(plan: MemoryPlan, load: LoadSettings) -> Caps:
    """A cap for RAM that the worker owns, and one for each GPU that the plan uses."""
    return Caps(
        own_bytes=with_margin(plan.own_bytes),
        mapped_bytes=plan.mapped_bytes,
        planned_own_bytes=plan.own_bytes,
        threads=load.threads + load.slots + SERVER_THREADS,
        gpu_bytes={
            device.device: with_margin(device.total_bytes)
            for device in plan.devices
            if device.device != "RAM" and device.total_bytes
        },
    )
