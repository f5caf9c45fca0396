"""Header-only GGUF files: every tensor named and shaped as the real model's, data never written.

The files are sparse: their apparent size is the model's, on disk they take some kilobytes. They
carry no vocabulary (`no_vocab`), so that the engine's dry run is quick.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from app.core.models.ggml_types import TYPE_BY_NAME

Value = int | float | bool | str | list[int] | list[float] | list[bool]


@dataclass
class FakeModel:
    """A model to be: keys without the architecture's prefix, tensors as (name, shape, type)."""

    architecture: str
    keys: dict[str, Value]
    tensors: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    plain_keys: dict[str, Value] = field(default_factory=dict)

    def add(self, name: str, *shape: int, kind: str = "q4_k") -> None:
        """A tensor; vectors are f32, and rows that k-quants cannot hold are q8_0."""
        if len(shape) == 1:
            kind = "f32"
        elif shape[0] % TYPE_BY_NAME[kind].block_elements:
            kind = "q8_0" if shape[0] % 32 == 0 else "f16"
        self.tensors.append((f"{name}", shape, kind))

    @property
    def size_bytes(self) -> int:
        total = 0
        for _name, shape, kind in self.tensors:
            size = TYPE_BY_NAME[kind].row_bytes(shape[0])
            for length in shape[1:]:
                size *= length
            total += size
        return total


def write_model(
    model: FakeModel, path: Path, extra: Mapping[str, Value] | None = None, vocabulary: int = 0
) -> Path:
    """Write the header and stretch the file to the model's size, without writing data."""
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_string("general.name", path.stem)
    keys = {f"{model.architecture}.{key}": value for key, value in model.keys.items()}
    keys |= model.plain_keys | dict(extra or {})
    keys.setdefault("tokenizer.ggml.model", "no_vocab")
    for key, value in keys.items():
        _add(writer, key, value)
    if vocabulary:
        writer.add_array(
            "tokenizer.ggml.tokens", [f"token{number}" for number in range(vocabulary)]
        )
        writer.add_array("tokenizer.ggml.token_type", [1] * vocabulary)
    end = 0
    for name, shape, kind in model.tensors:
        row = TYPE_BY_NAME[kind].row_bytes(shape[0])
        size = int(row * np.prod(shape[1:], dtype=np.int64))
        writer.add_tensor_info(
            name,
            [int(length) for length in reversed(shape)],
            np.dtype(np.float32),
            size,
            gguf.GGMLQuantizationType[kind.upper()],
        )
        end = (end + 31) // 32 * 32 + size
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        head = file.seek(0, 2)
        file.truncate((head + 31) // 32 * 32 + (end + 31) // 32 * 32)
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Value) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _base(
    architecture: str,
    *,
    embd: int,
    layers: int,
    heads: int,
    kv: int | list[int],
    ff: int | list[int],
    vocab: int,
    context: int,
    head_dim: int = 0,
    tied: bool = False,
    **more: Value,
) -> FakeModel:
    keys: dict[str, Value] = {
        "context_length": context,
        "embedding_length": embd,
        "block_count": layers,
        "attention.head_count": heads,
        "attention.head_count_kv": kv,
        "feed_forward_length": ff,
        "vocab_size": vocab,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.layer_norm_epsilon": 1e-6,
        "rope.freq_base": 500000.0,
    }
    if head_dim:
        keys |= {
            "attention.key_length": head_dim,
            "attention.value_length": head_dim,
            "rope.dimension_count": head_dim,
        }
    keys |= {name.replace("__", "."): value for name, value in more.items()}
    model = FakeModel(architecture, keys)
    model.add("token_embd.weight", embd, vocab)
    model.add("output_norm.weight", embd)
    if not tied:
        model.add("output.weight", embd, vocab, kind="q6_k")
    return model


def _attention(
    model: FakeModel,
    layer: int,
    embd: int,
    query: int,
    kv: int,
    *,
    bias: bool = False,
    norms: int = 0,
) -> None:
    block = f"blk.{layer}."
    model.add(f"{block}attn_norm.weight", embd)
    model.add(f"{block}attn_q.weight", embd, query)
    model.add(f"{block}attn_k.weight", embd, kv)
    model.add(f"{block}attn_v.weight", embd, kv, kind="q6_k")
    model.add(f"{block}attn_output.weight", query, embd)
    if bias:
        model.add(f"{block}attn_q.bias", query)
        model.add(f"{block}attn_k.bias", kv)
        model.add(f"{block}attn_v.bias", kv)
    if norms:
        model.add(f"{block}attn_q_norm.weight", norms)
        model.add(f"{block}attn_k_norm.weight", norms)


def _dense(model: FakeModel, layer: int, embd: int, ff: int) -> None:
    block = f"blk.{layer}."
    model.add(f"{block}ffn_norm.weight", embd)
    model.add(f"{block}ffn_gate.weight", embd, ff)
    model.add(f"{block}ffn_up.weight", embd, ff)
    model.add(f"{block}ffn_down.weight", ff, embd, kind="q6_k")


def _experts(
    model: FakeModel, layer: int, embd: int, ff: int, count: int, kind: str = "q4_k"
) -> None:
    block = f"blk.{layer}."
    model.add(f"{block}ffn_gate_inp.weight", embd, count, kind="f32")
    model.add(f"{block}ffn_gate_exps.weight", embd, ff, count, kind=kind)
    model.add(f"{block}ffn_up_exps.weight", embd, ff, count, kind=kind)
    model.add(
        f"{block}ffn_down_exps.weight", ff, embd, count, kind="q6_k" if kind == "q4_k" else kind
    )
