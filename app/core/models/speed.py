"""About how fast a load will answer, from the memory that a token reads. Pure.

A token of one request reads every active weight once. On a processor each thread turns so many bytes
a second into numbers, up to what the memory gives; a step costs a little besides. The figures are
those of usual hardware (`presets.yaml`): they are there to warn, not to promise, and what is told is
a range.
"""

from app.core.hardware.machine import Machine
from app.core.models.judge import RAM
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.presets_file import presets
from app.core.models.spec import ModelSpec

LOW_SHARE, HIGH_SHARE = 0.5, 1.5
"""Of the estimate: what other programs, slow memory, and fast cards make of it."""

FAST_TOKENS_PER_S = 300
"""Nobody waits for an answer above it, and nobody can tell beforehand how far above."""


def tokens_per_s(spec: ModelSpec, plan: MemoryPlan, machine: Machine, threads: int) -> float:
    """A middling decode speed of one request on usual hardware; 0 where unknown."""
    figures = presets()
    seconds = 0.0
    for part in plan.devices:
        read_bytes = _read_bytes(spec, part, plan)
        if not read_bytes:
            continue
        gpu = machine.gpu(part.device)
        rate, step_s = figures.gpu_bytes_per_s, figures.step_s
        if gpu is not None and gpu.is_integrated:
            rate = figures.unified_bytes_per_s
        elif part.device == RAM:
            rate = processor_bytes_per_s(threads)
        seconds += read_bytes * active_share(spec) / rate + step_s
    return 1 / seconds if seconds else 0.0


def _read_bytes(spec: ModelSpec, part: DevicePlan, plan: MemoryPlan) -> int:
    """Weights that a token reads there: of the embeddings in RAM it takes one row."""
    shape = spec.shape
    if part.device != RAM or shape is None:
        return part.weights_bytes
    unread = shape.input_bytes
    on_gpu = any(each.weights_bytes for each in plan.devices if each.device != RAM)
    if not on_gpu and not shape.tied_repack:
        unread -= shape.tied_bytes  # they are the output layer too
    return max(0, part.weights_bytes - unread)


def processor_bytes_per_s(threads: int) -> float:
    """Weights that a processor reads a second with so many threads."""
    figures = presets()
    return min(max(1, threads) * figures.thread_bytes_per_s, figures.ram_bytes_per_s)


def speed_text(speed: float) -> str:
    """`roughly 5 to 15 tokens a second`: an estimate as the range that it stands for."""
    low, high = _plain(speed * LOW_SHARE), _plain(speed * HIGH_SHARE)
    if low >= FAST_TOKENS_PER_S:
        return f"more than {FAST_TOKENS_PER_S} tokens a second"
    if not high:
        return "less than 1 token a second"
    if not low:
        return f"at most {high} token{'s' if high > 1 else ''} a second"
    if high == low:
        return f"roughly {low} token{'s' if low > 1 else ''} a second"
    return f"roughly {low} to {high} tokens a second"


def _plain(speed: float) -> int:
    """Rounded down so far that it looks no surer than it is."""
    step = 1 if speed < 10 else 5 if speed < 100 else 50
    return int(speed / step) * step


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
