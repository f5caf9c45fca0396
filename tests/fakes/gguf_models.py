"""Header-only models of the architectures that people run most, by name in `MODELS`.

Every tensor is named and shaped as the real model's; `gguf_writer.py` writes them.
"""

from collections.abc import Callable, Mapping

from tests.fakes.gguf_writer import (
    FakeModel,
    _attention,
    _base,
    _dense,
    _experts,
    write_model,
)

__all__ = ["MODELS", "FakeModel", "_attention", "_base", "_dense", "write_model"]


def llama_8b() -> FakeModel:
    model = _base(
        "llama",
        embd=4096,
        layers=32,
        heads=32,
        kv=8,
        ff=14336,
        vocab=128256,
        context=131072,
        rope__dimension_count=128,
    )
    model.add("rope_freqs.weight", 64)
    for layer in range(32):
        _attention(model, layer, 4096, 4096, 1024)
        _dense(model, layer, 4096, 14336)
    return model


def llama_1b() -> FakeModel:
    model = _base(
        "llama",
        embd=2048,
        layers=16,
        heads=32,
        kv=8,
        ff=8192,
        vocab=128256,
        context=131072,
        head_dim=64,
        tied=True,
    )
    model.add("rope_freqs.weight", 32)
    for layer in range(16):
        _attention(model, layer, 2048, 2048, 512)
        _dense(model, layer, 2048, 8192)
    return model


def llama2_7b() -> FakeModel:
    """Multi-head attention: 512 KiB of KV a token at f16."""
    model = _base(
        "llama", embd=4096, layers=32, heads=32, kv=32, ff=11008, vocab=32000, context=32768
    )
    for layer in range(32):
        _attention(model, layer, 4096, 4096, 4096)
        _dense(model, layer, 4096, 11008)
    return model


def mistral_7b() -> FakeModel:
    model = _base(
        "llama", embd=4096, layers=32, heads=32, kv=8, ff=14336, vocab=32768, context=32768
    )
    for layer in range(32):
        _attention(model, layer, 4096, 4096, 1024)
        _dense(model, layer, 4096, 14336)
    return model


def qwen2_7b() -> FakeModel:
    model = _base(
        "qwen2", embd=3584, layers=28, heads=28, kv=4, ff=18944, vocab=152064, context=131072
    )
    for layer in range(28):
        _attention(model, layer, 3584, 3584, 512, bias=True)
        _dense(model, layer, 3584, 18944)
    return model


def qwen3_32b() -> FakeModel:
    model = _base(
        "qwen3",
        embd=5120,
        layers=64,
        heads=64,
        kv=8,
        ff=25600,
        vocab=151936,
        context=40960,
        head_dim=128,
    )
    for layer in range(64):
        _attention(model, layer, 5120, 8192, 1024, norms=128)
        _dense(model, layer, 5120, 25600)
    return model


def qwen3moe_30b() -> FakeModel:
    model = _base(
        "qwen3moe",
        embd=2048,
        layers=48,
        heads=32,
        kv=4,
        ff=6144,
        vocab=151936,
        context=40960,
        head_dim=128,
        expert_count=128,
        expert_used_count=8,
        expert_feed_forward_length=768,
    )
    for layer in range(48):
        _attention(model, layer, 2048, 4096, 512, norms=128)
        model.add(f"blk.{layer}.ffn_norm.weight", 2048)
        _experts(model, layer, 2048, 768, 128)
    return model


def gemma3_27b() -> FakeModel:
    model = _base(
        "gemma3",
        embd=5376,
        layers=62,
        heads=32,
        kv=16,
        ff=21504,
        vocab=262208,
        context=131072,
        head_dim=128,
        tied=True,
        attention__sliding_window=1024,
    )
    for layer in range(62):
        _attention(model, layer, 5376, 4096, 2048, norms=128)
        _dense(model, layer, 5376, 21504)
        model.add(f"blk.{layer}.post_attention_norm.weight", 5376)
        model.add(f"blk.{layer}.post_ffw_norm.weight", 5376)
    return model


def gpt_oss_20b() -> FakeModel:
    model = _base(
        "gpt-oss",
        embd=2880,
        layers=24,
        heads=64,
        kv=8,
        ff=2880,
        vocab=201088,
        context=131072,
        head_dim=64,
        expert_count=32,
        expert_used_count=4,
        expert_feed_forward_length=2880,
        attention__sliding_window=128,
    )
    for layer in range(24):
        block = f"blk.{layer}."
        _attention(model, layer, 2880, 4096, 512, bias=True)
        model.add(f"{block}attn_output.bias", 2880)
        model.add(f"{block}attn_sinks.weight", 64)
        model.add(f"{block}post_attention_norm.weight", 2880)
        _experts(model, layer, 2880, 2880, 32, "mxfp4")
        model.add(f"{block}ffn_gate_inp.bias", 32)
        model.add(f"{block}ffn_gate_exps.bias", 2880, 32, kind="f32")
        model.add(f"{block}ffn_up_exps.bias", 2880, 32, kind="f32")
        model.add(f"{block}ffn_down_exps.bias", 2880, 32, kind="f32")
    return model


def phi3_mini() -> FakeModel:
    model = _base(
        "phi3",
        embd=3072,
        layers=32,
        heads=32,
        kv=32,
        ff=8192,
        vocab=32064,
        context=131072,
        rope__dimension_count=96,
        attention__sliding_window=262144,
        rope__scaling__original_context_length=4096,
        rope__scaling__attn_factor=1.19,
    )
    model.add("rope_factors_long.weight", 48)
    model.add("rope_factors_short.weight", 48)
    for layer in range(32):
        block = f"blk.{layer}."
        model.add(f"{block}attn_norm.weight", 3072)
        model.add(f"{block}attn_qkv.weight", 3072, 9216)
        model.add(f"{block}attn_output.weight", 3072, 3072)
        model.add(f"{block}ffn_norm.weight", 3072)
        model.add(f"{block}ffn_up.weight", 3072, 16384)
        model.add(f"{block}ffn_down.weight", 8192, 3072, kind="q6_k")
    return model


def deepseek2(
    *,
    embd: int,
    layers: int,
    heads: int,
    ff: int,
    vocab: int,
    experts: int,
    expert_ff: int,
    used: int,
    shared: int,
    dense: int,
    q_lora: int,
) -> FakeModel:
    model = _base(
        "deepseek2",
        embd=embd,
        layers=layers,
        heads=heads,
        kv=1,
        ff=ff,
        vocab=vocab,
        context=163840,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
        attention__kv_lora_rank=512,
        rope__dimension_count=64,
        leading_dense_block_count=dense,
        expert_count=experts,
        expert_used_count=used,
        expert_shared_count=shared,
        expert_feed_forward_length=expert_ff,
        expert_weights_scale=1.0,
        expert_gating_func=1,
        rope__scaling__yarn_log_multiplier=0.0707,
    )
    if q_lora:
        model.keys["attention.q_lora_rank"] = q_lora
    for layer in range(layers):
        block = f"blk.{layer}."
        model.add(f"{block}attn_norm.weight", embd)
        if q_lora:
            model.add(f"{block}attn_q_a.weight", embd, q_lora)
            model.add(f"{block}attn_q_a_norm.weight", q_lora)
            model.add(f"{block}attn_q_b.weight", q_lora, heads * 192)
        else:
            model.add(f"{block}attn_q.weight", embd, heads * 192)
        model.add(f"{block}attn_kv_a_mqa.weight", embd, 576)
        model.add(f"{block}attn_kv_a_norm.weight", 512)
        model.add(f"{block}attn_k_b.weight", 128, 512, heads)
        model.add(f"{block}attn_v_b.weight", 512, 128, heads)
        model.add(f"{block}attn_output.weight", heads * 128, embd)
        if layer < dense:
            _dense(model, layer, embd, ff)
            continue
        model.add(f"{block}ffn_norm.weight", embd)
        _experts(model, layer, embd, expert_ff, experts)
        model.add(f"{block}ffn_gate_shexp.weight", embd, expert_ff * shared)
        model.add(f"{block}ffn_up_shexp.weight", embd, expert_ff * shared)
        model.add(f"{block}ffn_down_shexp.weight", expert_ff * shared, embd, kind="q6_k")
    return model


def deepseek2_lite() -> FakeModel:
    return deepseek2(
        embd=2048,
        layers=27,
        heads=16,
        ff=10944,
        vocab=102400,
        experts=64,
        expert_ff=1408,
        used=6,
        shared=2,
        dense=1,
        q_lora=0,
    )


def deepseek_v3() -> FakeModel:
    return deepseek2(
        embd=7168,
        layers=61,
        heads=128,
        ff=18432,
        vocab=129280,
        experts=256,
        expert_ff=2048,
        used=8,
        shared=1,
        dense=3,
        q_lora=1536,
    )


def qwen3next_80b() -> FakeModel:
    model = _base(
        "qwen3next",
        embd=2048,
        layers=48,
        heads=16,
        kv=2,
        ff=5120,
        vocab=151936,
        context=262144,
        attention__key_length=256,
        attention__value_length=256,
        rope__dimension_count=64,
        expert_count=512,
        expert_used_count=10,
        expert_feed_forward_length=512,
        expert_shared_feed_forward_length=512,
        ssm__conv_kernel=4,
        ssm__state_size=128,
        ssm__group_count=16,
        ssm__time_step_rank=32,
        ssm__inner_size=4096,
        full_attention_interval=4,
    )
    for layer in range(48):
        block = f"blk.{layer}."
        model.add(f"{block}attn_norm.weight", 2048)
        if layer % 4 == 3:
            model.add(f"{block}attn_q.weight", 2048, 8192)
            model.add(f"{block}attn_k.weight", 2048, 512)
            model.add(f"{block}attn_v.weight", 2048, 512)
            model.add(f"{block}attn_output.weight", 4096, 2048)
            model.add(f"{block}attn_q_norm.weight", 256)
            model.add(f"{block}attn_k_norm.weight", 256)
        else:
            model.add(f"{block}attn_qkv.weight", 2048, 8192)
            model.add(f"{block}attn_gate.weight", 2048, 4096)
            model.add(f"{block}ssm_conv1d.weight", 4, 8192, kind="f32")
            model.add(f"{block}ssm_dt.bias", 32)
            model.add(f"{block}ssm_a", 32)
            model.add(f"{block}ssm_ba.weight", 2048, 64)
            model.add(f"{block}ssm_norm.weight", 128)
            model.add(f"{block}ssm_out.weight", 4096, 2048)
        model.add(f"{block}post_attention_norm.weight", 2048)
        _experts(model, layer, 2048, 512, 512)
        model.add(f"{block}ffn_gate_inp_shexp.weight", 2048)
        model.add(f"{block}ffn_gate_shexp.weight", 2048, 512)
        model.add(f"{block}ffn_up_shexp.weight", 2048, 512)
        model.add(f"{block}ffn_down_shexp.weight", 512, 2048)
    return model


def granite_hybrid_7b() -> FakeModel:
    """Granite 4.0 H-Tiny: 40 layers, four of them attention, Mamba2 elsewhere."""
    attention = {5, 15, 25, 35}
    model = _base(
        "granitehybrid",
        embd=1536,
        layers=40,
        heads=12,
        ff=512,
        vocab=100352,
        context=131072,
        kv=[4 if layer in attention else 0 for layer in range(40)],
        tied=True,
        rope__dimension_count=128,
        expert_count=64,
        expert_used_count=6,
        expert_shared_feed_forward_length=1024,
        ssm__conv_kernel=4,
        ssm__state_size=128,
        ssm__group_count=1,
        ssm__time_step_rank=48,
        ssm__inner_size=3072,
        attention__scale=0.0078125,
        embedding_scale=12.0,
        residual_scale=0.22,
        logit_scale=6.0,
        expert_feed_forward_length=512,
        rope__scaling__finetuned=False,
    )
    for layer in range(40):
        block = f"blk.{layer}."
        if layer in attention:
            _attention(model, layer, 1536, 1536, 512)
        else:
            model.add(f"{block}attn_norm.weight", 1536)
            model.add(f"{block}ssm_in.weight", 1536, 2 * 3072 + 2 * 128 + 48)
            model.add(f"{block}ssm_conv1d.weight", 4, 3072 + 256, kind="f32")
            model.add(f"{block}ssm_conv1d.bias", 3072 + 256)
            model.add(f"{block}ssm_dt.bias", 48)
            model.add(f"{block}ssm_a", 1, 48, kind="f32")
            model.add(f"{block}ssm_d", 1, 48, kind="f32")
            model.add(f"{block}ssm_norm.weight", 3072, 1, kind="f32")
            model.add(f"{block}ssm_out.weight", 3072, 1536)
        model.add(f"{block}ffn_norm.weight", 1536)
        _experts(model, layer, 1536, 512, 64)
        model.add(f"{block}ffn_gate_shexp.weight", 1536, 1024)
        model.add(f"{block}ffn_up_shexp.weight", 1536, 1024)
        model.add(f"{block}ffn_down_shexp.weight", 1024, 1536)
    return model


MODELS: Mapping[str, Callable[[], FakeModel]] = {
    "llama-8b": llama_8b,
    "llama-1b": llama_1b,
    "llama2-7b": llama2_7b,
    "mistral-7b": mistral_7b,
    "qwen2-7b": qwen2_7b,
    "qwen3-32b": qwen3_32b,
    "qwen3moe-30b": qwen3moe_30b,
    "gemma3-27b": gemma3_27b,
    "gpt-oss-20b": gpt_oss_20b,
    "phi3-mini": phi3_mini,
    "deepseek2-lite": deepseek2_lite,
    "deepseek-v3": deepseek_v3,
    "qwen3next-80b": qwen3next_80b,
    "granitehybrid-7b": granite_hybrid_7b,
}
