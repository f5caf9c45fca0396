"""`resources/presets.yaml`, typed. Read once; from any thread."""

from functools import lru_cache

import msgspec
import yaml

from app.core.paths import resource


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a mood asks for; less is taken where it does not fit."""

    context_tokens: int
    slots: int


class Mood(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of what the reserves leave, and what for."""

    text: str
    ram_share: float
    gpu_share: float
    gpu: Target
    cpu: Target


class Quantization(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`bits` a weight, scales included."""

    name: str
    bits: float
    text: str


class LadderStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A usual model of one size; `like` names it."""

    name: str
    like: str
    parameters: float
    layers: int
    kv_heads: int
    head_size: int
    vocabulary: int

    @property
    def kv_bytes_a_token(self) -> int:
        """K and V of every layer, in f16."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


class Presets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file; the words are in its comments."""

    moods: dict[str, Mood]
    good_context_tokens: int
    least_context_tokens: int
    cpu_batch_tokens: int
    gpu_batch_tokens: int
    gpu_ubatch_tokens: int
    checkpoints: int
    quantizations: tuple[Quantization, ...]
    best_quantization: str
    usual_quantization: str
    coarsest_quantization: str
    ladder: tuple[LadderStep, ...]
    cpu_largest_parameters: float
    cpu_best_quantization: str
    cpu_small_parameters: float
    ram_bytes_per_s: float
    thread_bytes_per_s: float
    step_s: float
    unified_bytes_per_s: float
    gpu_bytes_per_s: float
    slow_tokens_per_s: float
    least_tokens_per_s: float

    def bits(self, name: str) -> float:
        """The bits of a quantization by name; 0 where it is not in the list."""
        return next((each.bits for each in self.quantizations if each.name == name), 0.0)


@lru_cache(maxsize=1)
def presets() -> Presets:
    """What is shipped; a broken file is our own fault and is not caught."""
    tree = yaml.safe_load(resource("presets.yaml").read_text(encoding="utf-8"))
    return msgspec.convert(tree, Presets, strict=False)
