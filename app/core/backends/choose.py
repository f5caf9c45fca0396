"""Which engine runs a model: the user's choice, or what suits the hardware. Pure.

Asked by the backends before a load, and by `coolhead doctor`, which shows the reasons.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.core.backends.base import EngineInfo

KINDS = ("CUDA", "ROCm", "MTL", "Metal", "Vulkan", "SYCL")
"""Best first."""

SOFTWARE_DEVICES = ("llvmpipe", "lavapipe", "SwiftShader", "softpipe")
"""Vulkan computed on the processor: slower than computing on it directly."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The engine, or None, and why; `warning` is what the user should do something about."""

    engine: EngineInfo | None
    reason: str
    warning: str = ""


def choose_engine(
    infos: Sequence[EngineInfo], wanted: str = "auto", gpus: Sequence[str] = ()
) -> EngineChoice:
    """The engine to use.

    Args:
        infos: those found, in order of preference where they are alike.
        wanted: the setting `engine.engine`.
        gpus: names of the GPUs that the drivers tell of, for the warning.
    """
    if wanted not in {"auto", "mlx"}:
        infos = [info for info in infos if info.name == wanted]
        if not infos:
            return EngineChoice(None, f"{wanted} is set as the engine, but does not run this kind.")
    usable = [info for info in infos if info.usable]
    if not usable:
        why = "; ".join(f"{info.name}: {info.reason}" for info in infos)
        return EngineChoice(None, f"none can be used ({why}).")
    best = min(usable, key=_rank)
    what = f"it computes on {best_kind(best) or 'the processor'}"
    if wanted == best.name:
        what = f"it is set as the engine, and {what}"
    return _with_warning(best, f"{best.name} {best.version}: {what}.", gpus)


def best_kind(info: EngineInfo) -> str:
    """The best kind of GPU that an engine can use; empty for none."""
    kinds = {
        match[0]
        for device in info.devices
        if (match := re.match(r"[A-Za-z]+", device))
        and not any(name in device for name in SOFTWARE_DEVICES)
    }
    return next((kind for kind in KINDS if kind in kinds), "")


def _rank(info: EngineInfo) -> int:
    """One that answers a request at a time comes last, whatever it computes on."""
    kind = best_kind(info)
    rank = KINDS.index(kind) if kind else len(KINDS)
    return rank if info.is_parallel else rank + len(KINDS) + 1


def _with_warning(info: EngineInfo, reason: str, gpus: Sequence[str]) -> EngineChoice:
    warning = ""
    if gpus and not best_kind(info):
        warning = (
            f"{info.name} {info.version} computes on the processor although this machine has "
            f"{', '.join(gpus)}. Install a build for it, as in `coolhead engine install vulkan`."
        )
    return EngineChoice(info, reason, warning)
