"""What a load takes, per device and in bytes, before it is made.

Pure; called by the page's sliders, the presets and admission. The formula is calibrated against
the engine's own dry run (`dry_run.py`), which decides before a load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.models.load_settings import LoadSettings
from app.core.models.spec import ModelSpec

PlanSource = Literal["formula", "dry_run", "engine"]
RAM = "RAM"


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
    """Price a load by formula; under a millisecond, no file is touched.

    Args:
        spec: the model.
        settings: how it would be loaded.
        gpus: the engine's names of the GPUs to use, in order; none for CPU only.
    """
    weights = spec.size_bytes
    kv = 2 * 2 * settings.engine_context_tokens * spec.layers * 1024
    ram = DevicePlan(RAM, weights_bytes=weights, kv_bytes=kv)
    mapped = weights if settings.mmap else 0
    parts = (ram, *(DevicePlan(name) for name in gpus))
    return MemoryPlan(parts, ram.total_bytes - mapped, mapped, "formula", 100.0, "rough")
