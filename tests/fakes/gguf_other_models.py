"""Header-only models with windows, shared caches, inputs for each layer, or no gate.

For a shorter comparison with the engine; shapes are those of well-known models.
"""

from collections.abc import Callable, Mapping

from tests.fakes.gguf_writer import FakeModel, _attention, _base, _dense, _experts


def gemma2() -> FakeModel:
    model = _base(
        "gemma2",
        embd=3584,
        layers=42,
        heads=16,
        kv=8,
        ff=14336,
        vocab=256000,
        context=8192,
        head_dim=256,
        tied=True,
        attention__sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
    )
    for layer in range(42):
        _attention(model, layer, 3584, 4096, 2048)
        _dense(model, layer, 3584, 14336)
        model.add(f"blk.{layer}.post_attention_norm.weight", 3584)
        model.add(f"blk.{layer}.post_ffw_norm.weight", 3584)
    return model


def gemma3n() -> FakeModel:
    n = 30
    embd = 2048
    model = _base(
        "gemma3n",
        embd=embd,
        layers=n,
        heads=8,
        kv=2,
        ff=8192,
        vocab=262144,
        context=32768,
        head_dim=256,
        tied=True,
        attention__sliding_window=512,
        embedding_length_per_layer_input=256,
        altup__num_inputs=4,
        altup__active_idx=0,
        attention__shared_kv_layers=10,
    )
    model.keys["activation_sparsity_scale"] = [1.0] * n
    model.keys["attention.sliding_window_pattern"] = [(i + 1) % 5 != 0 for i in range(n)]
    model.add("per_layer_token_embd.weight", 256 * n, 262144)
    model.add("altup_proj.weight", embd, embd, 3)
    model.add("altup_unembd_proj.weight", embd, embd, 3)
    model.add("per_layer_model_proj.weight", embd, 256 * n)
    model.add("per_layer_proj_norm.weight", 256)
    for layer in range(n):
        block = f"blk.{layer}."
        _attention(model, layer, embd, 2048, 512, norms=256)
        _dense(model, layer, embd, 8192)
        for x, s in (
            ("post_attention_norm.weight", (embd,)),
            ("post_ffw_norm.weight", (embd,)),
            ("inp_gate.weight", (embd, 256)),
            ("proj.weight", (256, embd)),
            ("post_norm.weight", (embd,)),
            ("altup_correct_coef.weight", (4, 4)),
            ("altup_correct_scale.weight", (embd,)),
            ("altup_predict_coef.weight", (4, 16)),
            ("altup_router.weight", (embd, 4)),
            ("altup_router_norm.weight", (embd,)),
            ("laurel_l.weight", (embd, 64)),
            ("laurel_r.weight", (64, embd)),
            ("laurel_post_norm.weight", (embd,)),
        ):
            model.add(block + x, *s)
    return model


def gemma4() -> FakeModel:
    n = 60
    embd = 5376
    pattern = [(i + 1) % 6 != 0 for i in range(n)]
    model = _base(
        "gemma4",
        embd=embd,
        layers=n,
        heads=32,
        kv=[16 if w else 4 for w in pattern],
        ff=21504,
        vocab=262144,
        context=262144,
        tied=True,
        attention__sliding_window=1024,
        embedding_length_per_layer_input=0,
        attention__shared_kv_layers=0,
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        rope__dimension_count=512,
        rope__dimension_count_swa=256,
        final_logit_softcapping=30.0,
    )
    model.keys["attention.sliding_window_pattern"] = pattern
    model.add("rope_freqs.weight", 256)
    for layer in range(n):
        block = f"blk.{layer}."
        d = 256 if pattern[layer] else 512
        kv = (16 if pattern[layer] else 4) * d
        _attention(model, layer, embd, 32 * d, kv, norms=d)
        _dense(model, layer, embd, 21504)
        for x, s in (
            ("post_attention_norm.weight", (embd,)),
            ("post_ffw_norm.weight", (embd,)),
            ("layer_output_scale.weight", (1,)),
        ):
            model.add(block + x, *s)
        if not pattern[layer]:
            model.tensors = [t for t in model.tensors if t[0] != block + "attn_v.weight"]
    return model


def gemma4_e4b() -> FakeModel:
    n = 42
    embd = 2560
    pattern = [(i + 1) % 6 != 0 for i in range(n)]
    model = _base(
        "gemma4",
        embd=embd,
        layers=n,
        heads=8,
        kv=2,
        ff=10240,
        vocab=262144,
        context=131072,
        tied=True,
        attention__sliding_window=512,
        embedding_length_per_layer_input=256,
        attention__shared_kv_layers=18,
        attention__key_length=512,
        attention__value_length=512,
        attention__key_length_swa=256,
        attention__value_length_swa=256,
        rope__dimension_count=512,
        rope__dimension_count_swa=256,
        final_logit_softcapping=30.0,
    )
    model.keys["attention.sliding_window_pattern"] = pattern
    model.add("rope_freqs.weight", 256)
    model.add("per_layer_token_embd.weight", 256 * n, 262144)
    model.add("per_layer_model_proj.weight", embd, 256 * n)
    model.add("per_layer_proj_norm.weight", 256)
    for layer in range(n):
        block = f"blk.{layer}."
        d = 256 if pattern[layer] else 512
        _attention(model, layer, embd, 8 * d, 2 * d, norms=d)
        _dense(model, layer, embd, 10240)
        for x, s in (
            ("post_attention_norm.weight", (embd,)),
            ("post_ffw_norm.weight", (embd,)),
            ("layer_output_scale.weight", (1,)),
            ("inp_gate.weight", (embd, 256)),
            ("proj.weight", (256, embd)),
            ("post_norm.weight", (embd,)),
        ):
            model.add(block + x, *s)
    return model


def cohere2() -> FakeModel:
    model = _base(
        "cohere2",
        embd=4096,
        layers=32,
        heads=32,
        kv=8,
        ff=14336,
        vocab=256000,
        context=8192,
        head_dim=128,
        tied=True,
        attention__sliding_window=4096,
        logit_scale=0.25,
    )
    for layer in range(32):
        _attention(model, layer, 4096, 4096, 1024)
        _dense(model, layer, 4096, 14336)
    model.tensors = [t for t in model.tensors if "ffn_norm" not in t[0]]
    return model


def olmo2() -> FakeModel:
    model = _base(
        "olmo2",
        embd=4096,
        layers=32,
        heads=32,
        kv=32,
        ff=11008,
        vocab=100278,
        context=65536,
        attention__sliding_window=4096,
    )
    for layer in range(32):
        _attention(model, layer, 4096, 4096, 4096)
        _dense(model, layer, 4096, 11008)
        block = f"blk.{layer}."
        model.add(block + "attn_q_norm.weight", 4096)
        model.add(block + "attn_k_norm.weight", 4096)
        model.add(block + "post_attention_norm.weight", 4096)
        model.add(block + "post_ffw_norm.weight", 4096)
    model.tensors = [
        t for t in model.tensors if not t[0].endswith((".attn_norm.weight", "ffn_norm.weight"))
    ]
    return model


def exaone4() -> FakeModel:
    model = _base(
        "exaone4",
        embd=5120,
        layers=64,
        heads=40,
        kv=8,
        ff=27392,
        vocab=102400,
        context=131072,
        head_dim=128,
        attention__sliding_window=4096,
    )
    for layer in range(64):
        _attention(model, layer, 5120, 5120, 1024, norms=128)
        _dense(model, layer, 5120, 27392)
        block = f"blk.{layer}."
        model.add(block + "post_attention_norm.weight", 5120)
        model.add(block + "post_ffw_norm.weight", 5120)
    model.tensors = [
        t for t in model.tensors if not t[0].endswith((".attn_norm.weight", "ffn_norm.weight"))
    ]
    model.add("rope_freqs.weight", 64)
    return model


def glm4() -> FakeModel:
    model = _base(
        "glm4",
        embd=4096,
        layers=40,
        heads=32,
        kv=2,
        ff=13696,
        vocab=151552,
        context=32768,
        head_dim=128,
    )
    model.keys["rope.dimension_count"] = 64
    for layer in range(40):
        block = f"blk.{layer}."
        _attention(model, layer, 4096, 4096, 256)
        model.add(block + "post_attention_norm.weight", 4096)
        model.add(block + "ffn_norm.weight", 4096)
        model.add(block + "ffn_up.weight", 4096, 27392)
        model.add(block + "ffn_down.weight", 13696, 4096)
        model.add(block + "post_ffw_norm.weight", 4096)
    return model


def glm4moe() -> FakeModel:
    model = _base(
        "glm4moe",
        embd=4096,
        layers=47,
        heads=96,
        kv=8,
        ff=10944,
        vocab=151552,
        context=131072,
        head_dim=128,
        expert_count=128,
        expert_used_count=8,
        expert_feed_forward_length=1408,
        expert_shared_count=1,
        leading_dense_block_count=1,
        expert_gating_func=2,
        nextn_predict_layers=1,
    )
    model.keys["rope.dimension_count"] = 64
    for layer in range(47):
        block = f"blk.{layer}."
        _attention(model, layer, 4096, 12288, 1024, bias=True)
        model.add(block + "post_attention_norm.weight", 4096)
        if layer == 0:
            model.add(block + "ffn_gate.weight", 4096, 10944)
            model.add(block + "ffn_up.weight", 4096, 10944)
            model.add(block + "ffn_down.weight", 10944, 4096)
        else:
            _experts(model, layer, 4096, 1408, 128)
            model.add(block + "exp_probs_b.bias", 128)
            model.add(block + "ffn_gate_shexp.weight", 4096, 1408)
            model.add(block + "ffn_up_shexp.weight", 4096, 1408)
            model.add(block + "ffn_down_shexp.weight", 1408, 4096)
        if layer == 46:
            for n, s in (
                ("eh_proj.weight", (8192, 4096)),
                ("enorm.weight", (4096,)),
                ("hnorm.weight", (4096,)),
                ("shared_head_norm.weight", (4096,)),
            ):
                model.add(f"{block}nextn.{n}", *s)
    return model


def phi2() -> FakeModel:
    model = _base(
        "phi2", embd=2560, layers=32, heads=32, kv=32, ff=10240, vocab=51200, context=2048
    )
    model.keys["rope.dimension_count"] = 32
    model.add("output.bias", 51200)
    model.add("output_norm.bias", 2560)
    for layer in range(32):
        block = f"blk.{layer}."
        for n, s in (
            ("attn_norm.weight", (2560,)),
            ("attn_norm.bias", (2560,)),
            ("attn_qkv.weight", (2560, 7680)),
            ("attn_qkv.bias", (7680,)),
            ("attn_output.weight", (2560, 2560)),
            ("attn_output.bias", (2560,)),
            ("ffn_down.weight", (10240, 2560)),
            ("ffn_down.bias", (2560,)),
            ("ffn_up.weight", (2560, 10240)),
            ("ffn_up.bias", (10240,)),
        ):
            model.add(block + n, *s)
    return model


def starcoder2() -> FakeModel:
    model = _base(
        "starcoder2", embd=3072, layers=30, heads=24, kv=2, ff=12288, vocab=49152, context=16384
    )
    model.add("output_norm.bias", 3072)
    for layer in range(30):
        block = f"blk.{layer}."
        _attention(model, layer, 3072, 3072, 256, bias=True)
        for n, s in (
            ("attn_norm.bias", (3072,)),
            ("attn_output.bias", (3072,)),
            ("ffn_norm.weight", (3072,)),
            ("ffn_norm.bias", (3072,)),
            ("ffn_down.weight", (12288, 3072)),
            ("ffn_down.bias", (3072,)),
            ("ffn_up.weight", (3072, 12288)),
            ("ffn_up.bias", (12288,)),
        ):
            model.add(block + n, *s)
    return model


def mixtral() -> FakeModel:
    model = _base(
        "llama",
        embd=4096,
        layers=32,
        heads=32,
        kv=8,
        ff=14336,
        vocab=32000,
        context=32768,
        expert_count=8,
        expert_used_count=2,
    )
    for layer in range(32):
        _attention(model, layer, 4096, 4096, 1024)
        model.add(f"blk.{layer}.ffn_norm.weight", 4096)
        _experts(model, layer, 4096, 14336, 8)
    return model


OTHER_MODELS: Mapping[str, Callable[[], FakeModel]] = {
    "gemma2": gemma2,
    "gemma3n": gemma3n,
    "gemma4": gemma4,
    "gemma4-e4b": gemma4_e4b,
    "cohere2": cohere2,
    "olmo2": olmo2,
    "exaone4": exaone4,
    "glm4": glm4,
    "glm4moe": glm4moe,
    "phi2": phi2,
    "starcoder2": starcoder2,
    "mixtral": mixtral,
}
