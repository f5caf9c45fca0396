"""A model's shape: what the memory plan needs of a header, worked out once when it is read.

Pure. Called by `spec.py`. Sizes in bytes.
"""

import re
from dataclasses import dataclass

from app.core.models import plan_arch
from app.core.models.gguf_parser import GgufHeader, Tensor
from app.core.models.plan_layer import (
    Keys,
    Layer,
    LayerSums,
    is_repacked,
    layer_of,
    repacked_types,
)

BLOCK = re.compile(r"^blk\.(\d{1,5})\.")
MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """What a header says about memory.

    Attributes:
        is_known: the formulas below are calibrated for this architecture.
        input_bytes: token embeddings, of the text and of each layer; they stay in RAM.
        window_tokens: of sliding-window layers; 0 for none.
        output_bytes: weights of the output layer; of them `output_repack_bytes` repacked.
        tied_bytes: token embeddings that serve as output layer too, copied where that lies;
            0 where there is an output layer.
        tied_repack: the CPU backend would copy them into a layout of its own.
        vocabulary_entries: tokens and merges that the tokenizer keeps.
    """

    is_known: bool
    layers: tuple[Layer, ...]
    embedding: int
    vocabulary: int
    window_tokens: int
    input_bytes: int
    output_bytes: int
    output_repack_bytes: int
    tied_bytes: int
    tied_repack: bool
    vocabulary_entries: int


def shape_of(header: GgufHeader) -> Shape:
    """The shape of a model; of an architecture unknown here, as if it were a plain one."""
    keys = Keys(header)
    architecture = keys.architecture
    types = repacked_types()
    # The layers of multi-token prediction at the end are loaded for drafting only
    # (`llama_hparams::n_layer_nextn`).
    count = min(keys.number("block_count"), MAX_LAYERS)
    kept = max(0, count - keys.number("nextn_predict_layers"))
    sums = [LayerSums() for _ in range(kept)]
    rest = LayerSums()
    matrices: dict[str, Tensor] = {}
    for tensor in header.tensors:
        block = BLOCK.match(tensor.name)
        if block is None:
            matrices[tensor.name] = tensor
            continue
        number = int(block[1])
        if number < kept:
            sums[number].add(tensor, types)
        elif number >= count:
            rest.add(tensor, types)
    embeddings = matrices.get("token_embd.weight")
    output = matrices.get("output.weight")
    window = plan_arch.WINDOWS.get(architecture)
    window_tokens = keys.number("attention.sliding_window", window.tokens if window else 0)
    if window is None or (window.layers and window.layers != count):
        window_tokens = 0
    layers = tuple(layer_of(keys, number, sums[number], window_tokens) for number in range(kept))
    inputs = sum(t.size_bytes for t in matrices.values() if "token_embd" in t.name)
    other = sum(t.size_bytes for t in matrices.values() if t is not output) - inputs
    is_tied = output is None and embeddings is not None
    return Shape(
        is_known=architecture in plan_arch.KNOWN and kept > 0,
        layers=layers,
        embedding=keys.number("embedding_length"),
        vocabulary=embeddings.shape[-1]
        if embeddings and embeddings.shape
        else keys.number("vocab_size"),
        window_tokens=window_tokens,
        input_bytes=inputs + rest.total_bytes,
        output_bytes=(output.size_bytes if output else 0) + other,
        output_repack_bytes=output.size_bytes if output and is_repacked(output, types) else 0,
        tied_bytes=embeddings.size_bytes if embeddings and is_tied else 0,
        tied_repack=embeddings is not None and is_tied and is_repacked(embeddings, types),
        vocabulary_entries=keys.length("tokenizer.ggml.tokens")
        + keys.length("tokenizer.ggml.merges"),
    )
