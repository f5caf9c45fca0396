"""About how fast a load will answer, from the memory that a token reads. Pure.

A token of one request reads every active weight once, so that memory bandwidth is its ceiling. The
figures are those of usual hardware (`presets.yaml`); they are there to warn, not to promise.
"""

from app.core.hardware.machine import Machine
from app.core.models.judge import RAM
from app.core.models.plan import MemoryPlan
from app.core.models.presets_file import presets
from app.core.models.spec import ModelSpec


def tokens_per_s(spec: ModelSpec, plan: MemoryPlan, machine: Machine) -> float:
    """The ceiling of the decode speed of one request on usual hardware; 0 where unknown."""
    figures = presets()
    seconds = 0.0
    for part in plan.devices:
        gpu = machine.gpu(part.device)
        rate = figures.gpu_bytes_per_s
        if gpu is not None and gpu.is_integrated:
            rate = figures.unified_bytes_per_s
        elif part.device == RAM:
            rate = figures.ram_bytes_per_s
        seconds += part.weights_bytes * active_share(spec) / rate
    return 1 / seconds if seconds else 0.0


def active_share(spec: ModelSpec) -> float:
    """The share of the weights that one token reads: below 1 for mixtures of experts."""
    header = spec.header
    if header is None:
        return 1.0
    experts = header.integer(f"{spec.architecture}.expert_count")
    used = header.integer(f"{spec.architecture}.expert_used_count")
    whole = sum(tensor.size_bytes for tensor in header.tensors)
    if not experts or not used or not whole:
        return 1.0
    routed = sum(tensor.size_bytes for tensor in header.tensors if "_exps" in tensor.name)
    return (whole - routed + routed * min(1.0, used / experts)) / whole
