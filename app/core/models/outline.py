"""A model of the catalogue before it is here: its header, made up from what is known of it. Pure.

Called by `coolhead plan NAME`. Tensors are named and shaped as in the real file and typed as its
quantization has them, so that plan and presets price it like any other; some percent off.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.core.models.catalogue import CatalogueEntry, Outline
from app.core.models.ggml_types import TYPE_BY_NAME
from app.core.models.gguf_parser import GgufHeader, MetaValue, SkippedArray, Tensor
from app.core.models.spec import ModelSpec, spec_of

ESTIMATE_MARGIN_PERCENT = 20.0
TOKEN_BYTES = 32
"""What a file keeps of each token of its vocabulary: text, type, and a merge."""


@dataclass(frozen=True, slots=True)
class _Mixture:
    """Types of a quantization's matrices: most of them, the finer ones, and output or embeddings."""

    usual: str
    finer: str
    output: str
    experts: str = ""


_MIXTURES: Mapping[str, _Mixture] = {
    "Q8_0": _Mixture("q8_0", "q8_0", "q8_0"),
    "Q4_K_M": _Mixture("q4_k", "q6_k", "q6_k"),
    "Q4_1": _Mixture("q4_1", "q4_1", "q6_k"),
    "MXFP4": _Mixture("q8_0", "q8_0", "q8_0", "mxfp4"),
}
"""Source: `llama_tensor_get_type` (llama-quant.cpp), and the published file for MXFP4."""


def can_outline(entry: CatalogueEntry) -> bool:
    """Whether enough is known of it."""
    return entry.outline is not None and entry.quantization in _MIXTURES


def outlined(entry: CatalogueEntry) -> ModelSpec:
    """The model that the entry would fetch; its path is only a name. Needs `can_outline`."""
    assert entry.outline is not None
    path = Path(entry.file or f"{entry.name}-{entry.quantization.lower()}.gguf")
    header = _header(entry.outline, _MIXTURES[entry.quantization], path)
    spec = spec_of(header, path, entry.name)
    return dataclasses.replace(
        spec, name=entry.title, quantization=entry.quantization, has_chat_template=True
    )


def _header(outline: Outline, mixture: _Mixture, path: Path) -> GgufHeader:
    of = outline.architecture
    figures: dict[str, int] = {
        "context_length": outline.context_tokens,
        "embedding_length": outline.embedding,
        "block_count": outline.layers,
        "feed_forward_length": outline.feed_forward,
        "vocab_size": outline.vocabulary,
        "attention.head_count": outline.heads,
        "attention.head_count_kv": outline.kv_heads,
        "attention.key_length": outline.head_size,
        "attention.value_length": outline.head_size,
        "attention.sliding_window": outline.window_tokens,
        "expert_count": outline.experts,
        "expert_used_count": outline.experts_used,
    }
    metadata: dict[str, MetaValue] = {
        f"{of}.{key}": value for key, value in figures.items() if value
    }
    metadata["general.architecture"] = of
    metadata["tokenizer.ggml.tokens"] = SkippedArray(outline.vocabulary)
    metadata["tokenizer.ggml.merges"] = SkippedArray(outline.vocabulary)
    tensors = tuple(_tensors(outline, mixture))
    size = sum(tensor.size_bytes for tensor in tensors) + TOKEN_BYTES * outline.vocabulary
    return GgufHeader(3, metadata, tensors, (path,), 32, size)


def _tensors(outline: Outline, mixture: _Mixture) -> Iterator[Tensor]:
    wide, hidden = outline.embedding, outline.feed_forward
    query, kv = outline.heads * outline.head_size, outline.kv_heads * outline.head_size
    tied = outline.is_tied
    embeddings = mixture.output if tied else mixture.usual
    yield _tensor("token_embd.weight", embeddings, wide, outline.vocabulary)
    yield _tensor("output_norm.weight", "f32", wide)
    if not tied:
        yield _tensor("output.weight", mixture.output, wide, outline.vocabulary)
    for number in range(outline.layers):
        block = f"blk.{number}."
        fine = mixture.finer if _is_finer(number, outline.layers) else mixture.usual
        yield _tensor(f"{block}attn_norm.weight", "f32", wide)
        yield _tensor(f"{block}attn_q.weight", mixture.usual, wide, query)
        yield _tensor(f"{block}attn_k.weight", mixture.usual, wide, kv)
        yield _tensor(f"{block}attn_v.weight", fine, wide, kv)
        yield _tensor(f"{block}attn_output.weight", mixture.usual, query, wide)
        yield _tensor(f"{block}ffn_norm.weight", "f32", wide)
        if outline.experts:
            kind, count = mixture.experts or mixture.usual, outline.experts
            yield _tensor(f"{block}ffn_gate_inp.weight", "f32", wide, count)
            yield _tensor(f"{block}ffn_gate_exps.weight", kind, wide, hidden, count)
            yield _tensor(f"{block}ffn_up_exps.weight", kind, wide, hidden, count)
            yield _tensor(f"{block}ffn_down_exps.weight", kind, hidden, wide, count)
        else:
            yield _tensor(f"{block}ffn_gate.weight", mixture.usual, wide, hidden)
            yield _tensor(f"{block}ffn_up.weight", mixture.usual, wide, hidden)
            yield _tensor(f"{block}ffn_down.weight", fine, hidden, wide)


def _is_finer(number: int, layers: int) -> bool:
    """Source: `use_more_bits` (llama-quant.cpp): the first and last eighth, and each third between."""
    eighth = layers // 8
    return number < eighth or number >= 7 * layers // 8 or (number - eighth) % 3 == 2


def _tensor(name: str, kind: str, *shape: int) -> Tensor:
    if shape[0] % TYPE_BY_NAME[kind].block_elements:
        # What llama-quant.cpp falls back to where rows are no whole blocks.
        kind = {"q4_k": "q5_0", "q6_k": "q8_0"}.get(kind, "f16")
    size = TYPE_BY_NAME[kind].row_bytes(shape[0])
    for length in shape[1:]:
        size *= length
    return Tensor(name, shape, TYPE_BY_NAME[kind], size, 0)
