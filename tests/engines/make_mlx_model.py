"""Makes an MLX model out of a llama GGUF: `python make_mlx_model.py GGUF FOLDER BITS`.

A program, because it needs mlx on its path. BITS 0 leaves the dequantised weights as they are. All in
float32: quantised products in float16 are many times slower on a processor without it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

GROUP = 64
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def main(source: str, target: str, bits: int) -> None:
    reader = gguf.GGUFReader(source)
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    config = configuration(reader, bits)
    weights: dict[str, Any] = {}
    for tensor in reader.tensors:
        name = mlx_name(tensor.name)
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if name.endswith("q_proj"):
            data = unpermuted(data, config["num_attention_heads"])
        elif name.endswith("k_proj"):
            data = unpermuted(data, config["num_key_value_heads"])
        array = mx.array(data)
        if bits and data.ndim == 2:
            packed, scales, biases = mx.quantize(array, group_size=GROUP, bits=bits)
            weights |= {f"{name}.weight": packed, f"{name}.scales": scales}
            weights[f"{name}.biases"] = biases
        else:
            weights[f"{name}.weight"] = array
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(reader, folder)


def field(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()


def configuration(reader: Any, bits: int) -> dict[str, Any]:
    def of(key: str) -> Any:
        return field(reader, f"llama.{key}")

    names = {tensor.name for tensor in reader.tensors}
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": of("embedding_length"),
        "num_hidden_layers": of("block_count"),
        "intermediate_size": of("feed_forward_length"),
        "num_attention_heads": of("attention.head_count"),
        "num_key_value_heads": of("attention.head_count_kv"),
        "rms_norm_eps": of("attention.layer_norm_rms_epsilon"),
        "rope_theta": of("rope.freq_base"),
        "max_position_embeddings": of("context_length"),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "tie_word_embeddings": "output.weight" not in names,
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }
    if bits:
        config["quantization"] = {"group_size": GROUP, "bits": bits}
    return config


def mlx_name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{NAMES[parts[2]]}"
    return NAMES[parts[0]]


def unpermuted(data: Any, heads: int) -> Any:
    """GGUF holds Q and K in the order of llama.cpp's rotary pairs; MLX in the original one."""
    rows = data.shape[0]
    pairs = data.reshape(heads, rows // heads // 2, 2, *data.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(data.shape))


def write_tokenizer(reader: Any, folder: Path) -> None:
    tokens = field(reader, "tokenizer.ggml.tokens")
    kinds = field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(pair.split(" ", 1)) for pair in field(reader, "tokenizer.ggml.merges")]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokens[field(reader, "tokenizer.ggml.eos_token_id")]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "bos_token": tokens[field(reader, "tokenizer.ggml.bos_token_id")],
        "chat_template": field(reader, "tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
