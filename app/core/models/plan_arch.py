"""What tells llama.cpp's architectures apart where memory is concerned.

Pure tables, read by `plan_shape.py`. Each row is a fact of llama.cpp's `load_hparams` of that
architecture (src/models/*.cpp) or of `llama_model::create_memory`. An architecture that is in none
of them is priced by the engine's dry run only, and the plan says so.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Every layer keeps keys and values of its own for the whole context; no window takes effect.
PLAIN = frozenset({
    "apertus", "arcee", "baichuan", "bailingmoe", "bloom", "chatglm", "codeshell", "command-r",
    "dbrx", "deci", "deepseek", "dots1", "ernie4_5", "ernie4_5-moe", "exaone", "falcon", "gemma",
    "glm4", "glm4moe", "gpt2", "gptneox", "granite", "granitemoe", "hunyuan-dense", "hunyuan-moe",
    "internlm2", "jais", "llama", "minicpm", "mistral3", "mpt", "nemotron", "olmo", "olmoe",
    "openelm", "orion", "phi2", "phi3", "phimoe", "plamo", "qwen", "qwen2", "qwen2moe", "qwen2vl",
    "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss", "smollm3", "stablelm",
    "starcoder", "starcoder2", "xverse",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding-window layers.

    Attributes:
        pattern: of so many layers, the last one sees everything (`set_swa_pattern`).
        tokens: the window where the file names none.
        layers: only models of so many layers have a window; 0 for all.
    """

    pattern: int
    tokens: int = 0
    layers: int = 0


WINDOWS: Mapping[str, Window] = {
    "gemma2": Window(2, 4096),
    "gemma3": Window(6),
    "gemma3n": Window(5),
    "gemma4": Window(6),
    "gpt-oss": Window(2),
    "cohere2": Window(4),
    "olmo2": Window(4),
    "exaone4": Window(4, 4096, layers=64),
}

# Only so many first layers have keys and values of their own; the rest use theirs (gemma3n.cpp).
SHARED_KV_FROM: Mapping[str, int] = {"gemma3n": 20}

# Multi-head latent attention: one compressed row a token, no V cache (`llama_hparams::is_mla`).
LATENT = frozenset({"deepseek2"})

# State-space layers where the file gives a layer no KV heads; attention elsewhere.
MAMBA_HYBRIDS = frozenset({"granitehybrid", "jamba", "nemotron_h", "lfm2", "lfm2moe"})
# Gated delta net, with full attention each `full_attention_interval` layers.
DELTA_HYBRIDS = frozenset({"qwen3next", "qwen35", "qwen35moe"})
# Both in every layer.
PARALLEL_HYBRIDS = frozenset({"falcon-h1"})
# No attention at all.
RECURRENT = frozenset({"mamba", "mamba2"})

KNOWN = (
    PLAIN
    | frozenset(WINDOWS)
    | LATENT
    | MAMBA_HYBRIDS
    | DELTA_HYBRIDS
    | PARALLEL_HYBRIDS
    | RECURRENT
)
