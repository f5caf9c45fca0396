"""One layer's shape: rows of its caches, its state, its weights, and its widest working set.

Pure. Called by `plan_shape.py`. Sizes in bytes, rows in elements.
"""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.models import plan_arch
from app.core.models.ggml_types import GgmlType
from app.core.models.gguf_parser import GgufHeader, SkippedArray, Tensor

EXPERTS = re.compile(r"_(?:ch)?exps\.weight$")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer.

    Attributes:
        k_row: elements of K a token; 0 where the layer keeps none. `v_row` of V.
        has_window: the layer sees a sliding window only.
        heads: of the queries; `kv_heads` of keys and values.
        conv_elements: recurrent state of a sequence (llama.cpp's R, f32); `state_elements` its S.
        weights_bytes: all but experts; `expert_bytes` those.
        repack_bytes: of `weights_bytes`, what the CPU backend copies into a layout of its own;
            `expert_repack_bytes` of `expert_bytes`.
        step_elements: the widest working set of a step, in floats for each token of the batch.
        score_elements: that of attention beside its scores, which exist without flash attention.
        scan_elements: that of its recurrent part; 0 where there is none.
    """

    k_row: int
    v_row: int
    has_window: bool
    heads: int
    kv_heads: int
    conv_elements: int
    state_elements: int
    weights_bytes: int
    expert_bytes: int
    repack_bytes: int
    expert_repack_bytes: int
    step_elements: int
    score_elements: int
    scan_elements: int


def repacked_types(machine: str = platform.machine()) -> frozenset[str]:
    """Types that ggml's CPU backend copies into an interleaved layout at load.

    Source: `ggml_repack_get_optimal_repack_type` (ggml-cpu/repack.cpp), as built for AVX2 and for
    ARM with dot products; the engine's dry run shows what it does on this machine.
    """
    if machine.lower() in {"arm64", "aarch64"}:
        return frozenset({"q4_0", "q4_k", "q5_k", "q6_k", "q8_0", "iq4_nl", "mxfp4"})
    return frozenset({"q4_0", "q4_k", "iq4_nl", "mxfp4"})


def is_repacked(tensor: Tensor, types: frozenset[str]) -> bool:
    """Whether a matrix is repacked: of such a type, and its rows come in eights."""
    return len(tensor.shape) > 1 and tensor.type.name in types and tensor.shape[1] % 8 == 0


class LayerSums:
    """Weights of one layer, and the row lengths and rows of its matrices."""

    def __init__(self) -> None:
        self.weights_bytes = 0
        self.expert_bytes = 0
        self.repack_bytes = 0
        self.expert_repack_bytes = 0
        self.rows: dict[str, int] = {}
        self.widths: dict[str, int] = {}

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.expert_bytes

    def add(self, tensor: Tensor, types: frozenset[str]) -> None:
        repacked = tensor.size_bytes if is_repacked(tensor, types) else 0
        if EXPERTS.search(tensor.name):
            self.expert_bytes += tensor.size_bytes
            self.expert_repack_bytes += repacked
        else:
            self.weights_bytes += tensor.size_bytes
            self.repack_bytes += repacked
        if len(tensor.shape) > 1:
            name = tensor.name.split(".", 2)[2]
            self.rows[name], self.widths[name] = tensor.shape[:2]


class Keys:
    """Reads `<architecture>.<key>`, whole or for a layer."""

    def __init__(self, header: GgufHeader) -> None:
        self._meta: Mapping[str, object] = header.metadata
        self.architecture = header.text("general.architecture")

    def number(self, key: str, default: int = 0) -> int:
        value = self._meta.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple):
            value = max(value, default=default)
        return _bounded(value, default)

    def of_layer(self, key: str, layer: int, default: int = 0) -> int:
        value = self._meta.get(f"{self.architecture}.{key}")
        if isinstance(value, tuple):
            value = value[layer] if layer < len(value) else default
        return _bounded(value, default)

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._meta

    def flags(self, key: str) -> tuple[object, ...]:
        value = self._meta.get(f"{self.architecture}.{key}")
        return value if isinstance(value, tuple) else ()

    def length(self, key: str) -> int:
        value = self._meta.get(key)
        if isinstance(value, SkippedArray):
            return value.length
        return len(value) if isinstance(value, tuple) else 0


def _bounded(value: object, default: int) -> int:
    """A header's figure: a whole number that fits 32 bits unsigned, or the default."""
    return value if isinstance(value, int) and 0 <= value < 1 << 32 else default


def layer_of(keys: Keys, number: int, sums: LayerSums, window_tokens: int) -> Layer:
    architecture = keys.architecture
    has_window = bool(window_tokens) and _is_windowed(keys, number)
    k_row, v_row = _kv_rows(keys, number, has_window)
    conv, state = 0, 0
    if _is_recurrent(keys, number):
        conv, state = _recurrent_state(keys)
        if architecture not in plan_arch.PARALLEL_HYBRIDS:
            k_row = v_row = 0
    return Layer(
        k_row=k_row,
        v_row=v_row,
        has_window=has_window,
        heads=keys.of_layer("attention.head_count", number),
        kv_heads=keys.of_layer(
            "attention.head_count_kv", number, keys.of_layer("attention.head_count", number)
        ),
        conv_elements=conv,
        state_elements=state,
        weights_bytes=sums.weights_bytes,
        expert_bytes=sums.expert_bytes,
        repack_bytes=sums.repack_bytes,
        expert_repack_bytes=sums.expert_repack_bytes,
        step_elements=_step_elements(keys, number, sums, k_row, v_row),
        score_elements=_score_elements(keys, number, k_row, v_row),
        scan_elements=_scan_elements(keys) if state else 0,
    )


def _is_windowed(keys: Keys, number: int) -> bool:
    """Source: `llama_hparams::set_swa_pattern`, or the file's own pattern."""
    flags = keys.flags("attention.sliding_window_pattern")
    if flags:
        return number < len(flags) and bool(flags[number])
    window = plan_arch.WINDOWS[keys.architecture]
    pattern = keys.number("attention.sliding_window_pattern", window.pattern)
    return pattern == 0 or number % pattern < pattern - 1


def _kv_rows(keys: Keys, number: int, has_window: bool) -> tuple[int, int]:
    """Elements of K and V a token: heads times head length, or the latent row alone.

    Source: `llama_hparams::n_embd_k_gqa`, `n_embd_v_gqa`, `has_kv`; `llama_kv_cache` keeps no V
    where `is_mla`.
    """
    shared = keys.number("attention.shared_kv_layers")
    own = plan_arch.SHARED_KV_FROM.get(keys.architecture, keys.number("block_count") - shared)
    if number >= own:
        return 0, 0
    heads = keys.of_layer("attention.head_count", number)
    heads_kv = keys.of_layer("attention.head_count_kv", number, heads)
    length = keys.number("embedding_length") // heads if heads else 0
    tail = "_swa" if has_window and keys.has("attention.key_length_swa") else ""
    k_length = keys.number(f"attention.key_length{tail}", length)
    v_length = keys.number(f"attention.value_length{tail}", length)
    if keys.architecture in plan_arch.LATENT and keys.has("attention.key_length_mla"):
        return k_length * heads_kv, 0
    return k_length * heads_kv, v_length * heads_kv


def _is_recurrent(keys: Keys, number: int) -> bool:
    architecture = keys.architecture
    if architecture in plan_arch.RECURRENT or architecture in plan_arch.PARALLEL_HYBRIDS:
        return True
    if architecture in plan_arch.DELTA_HYBRIDS:
        interval = keys.number("full_attention_interval", 4) or 1
        return (number + 1) % interval != 0
    if architecture == "nemotron_h":
        return (
            keys.of_layer("attention.head_count_kv", number) == 0
            and keys.of_layer("feed_forward_length", number) == 0
        )
    return (
        architecture in plan_arch.MAMBA_HYBRIDS
        and keys.of_layer("attention.head_count_kv", number) == 0
    )


def _recurrent_state(keys: Keys) -> tuple[int, int]:
    """Floats of R (convolution) and S (state) of a sequence.

    Source: `llama_hparams::n_embd_r`, `n_embd_s`.
    """
    if keys.has("shortconv.l_cache"):
        return keys.number("embedding_length") * max(0, keys.number("shortconv.l_cache") - 1), 0
    inner = keys.number("ssm.inner_size")
    state = keys.number("ssm.state_size")
    channels = inner + 2 * keys.number("ssm.group_count") * state
    return max(0, keys.number("ssm.conv_kernel") - 1) * channels, state * inner


def _step_elements(keys: Keys, number: int, sums: LayerSums, k_row: int, v_row: int) -> int:
    """Floats alive at once for each token of the physical batch, at the widest point of a layer.

    Not from a formula of llama.cpp's: its graph allocator (ggml-alloc.c) decides. Fitted on the
    dry run by varying one width at a time; at once alive are
    - five residual-sized rows everywhere,
    - feed-forward: gate, up and their product; one row where there is no gate,
    - experts: the same for each expert in use, and their outputs where those find no gap,
    - attention: queries and their result, keys and values,
    - latent attention: queries plain, absorbed, joined, and the rotated part, for each head,
    and besides, in models that have them, the inputs of all layers and two sets of AltUp's streams.
    """
    rows = sums.rows
    embedding = keys.number("embedding_length")
    heads = keys.of_layer("attention.head_count", number)
    head_k = keys.number("attention.key_length", embedding // heads if heads else 0)
    parts = [
        2 * _query_row(keys, number) + k_row + v_row,
        (3 if _has_gate(sums) else 1) * rows.get("ffn_down.weight", 0),
        3 * rows.get("ffn_down_shexp.weight", 0),
    ]
    if keys.architecture in plan_arch.LATENT and v_row == 0:
        latent = keys.number("attention.kv_lora_rank")
        rope = keys.number("rope.dimension_count")
        parts.append(heads * (keys.number("attention.key_length_mla") + head_k + latent + rope))
    if sums.expert_bytes:
        used = keys.number("expert_used_count")
        expert = used * rows.get("ffn_down_exps.weight", 0)
        down = used * embedding
        parts.append(3 * expert + (down if down > 2 * expert else 0))
    beside = keys.number("embedding_length_per_layer_input") * keys.number("block_count")
    beside += 2 * keys.number("altup.num_inputs") * embedding
    return 5 * embedding + max(parts) + beside


def _has_gate(sums: LayerSums) -> bool:
    """A gate of its own, or one joined with the way up."""
    down = sums.rows.get("ffn_down.weight", 0)
    return "ffn_gate.weight" in sums.rows or sums.widths.get("ffn_up.weight", 0) > down


def _query_row(keys: Keys, number: int) -> int:
    heads = keys.of_layer("attention.head_count", number)
    length = keys.number("embedding_length") // heads if heads else 0
    return heads * keys.number("attention.key_length", length)


def _score_elements(keys: Keys, number: int, k_row: int, v_row: int) -> int:
    """Floats alive at once for each token while scores are weighed; fitted like the above."""
    if not k_row:
        return 0
    embedding = keys.number("embedding_length")
    query = _query_row(keys, number)
    if keys.architecture in plan_arch.LATENT:
        return 5 * embedding + 4 * query
    return 4 * embedding + 3 * query + k_row + v_row


def _scan_elements(keys: Keys) -> int:
    """Floats alive at once for each token in a state-space layer; fitted like the above.

    Five residual-sized rows, and for Mamba the projection, the convolution's input and output and
    a gate; for the gated delta net the values four times and the keys twice.
    """
    inner = keys.number("ssm.inner_size")
    keys_width = keys.number("ssm.group_count") * keys.number("ssm.state_size")
    if keys.architecture in plan_arch.DELTA_HYBRIDS:
        work = 4 * inner + 2 * keys_width
    else:
        work = 3 * (inner + 2 * keys_width) + 3 * inner // 2
    return 5 * keys.number("embedding_length") + work


def row_bytes(kind: GgmlType, elements: int) -> int:
    """A row of the KV cache; rows that are not whole blocks are rounded up."""
    blocks = (elements + kind.block_elements - 1) // kind.block_elements
    return blocks * kind.block_bytes
