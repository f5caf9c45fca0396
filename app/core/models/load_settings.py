"""The figures that decide what a load costs; given to the plan, the dry run and the engine alike.

Pure. One object for all three, so that what was priced is what is started.
"""

from dataclasses import dataclass, field
from typing import Literal

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How a model is loaded. Sizes in bytes, lengths in tokens.

    Attributes:
        context_tokens: per slot; the engine is given `context_tokens * slots`.
        slots: requests answered at once.
        kv_type_k: type of the K cache; `kv_type_v` of the V cache.
        kv_unified: one KV buffer shared by all slots instead of one each.
        swa_full: keep a full-size cache for sliding-window layers.
        batch_tokens: logical batch; `ubatch_tokens` the physical one.
        threads: for decode and prefill.
        gpu_layers: layers on GPUs, the output layer counted (llama.cpp's meaning); 0 for none.
        tensor_split: share of the layers for each GPU, in device order; empty for one GPU.
        experts_in_ram: MoE expert tensors of so many first layers stay in RAM.
        prompt_cache_bytes: RAM for prompts already read, across slots.
        checkpoints: context checkpoints kept for each slot.
        mmap: map the weights from the file instead of copying them.
        flash_attention: whether the engine uses flash attention.
        mmproj: path of a vision encoder; `draft` of a draft model.
        adapters: paths of LoRA adapters.
    """

    context_tokens: int = 4096
    slots: int = 1
    kv_type_k: KvType = "f16"
    kv_type_v: KvType = "f16"
    kv_unified: bool = False
    swa_full: bool = False
    batch_tokens: int = 256
    ubatch_tokens: int = 256
    threads: int = 1
    gpu_layers: int = 0
    tensor_split: tuple[float, ...] = ()
    experts_in_ram: int = 0
    prompt_cache_bytes: int = 0
    checkpoints: int = 0
    mmap: bool = True
    flash_attention: bool = True
    mmproj: str = ""
    draft: str = ""
    adapters: tuple[str, ...] = field(default=())

    @property
    def engine_context_tokens(self) -> int:
        """What the engine is given: the context of all slots together."""
        return self.context_tokens * self.slots
