"""Header-only models with state-space or convolution layers, alone or beside attention.

For a shorter comparison with the engine; shapes are those of well-known models.
"""

from collections.abc import Callable, Mapping

from tests.fakes.gguf_writer import FakeModel, _attention, _base, _dense, _experts


def _mamba2(
    model: FakeModel, layer: int, embd: int, inner: int, state: int, groups: int, dt: int
) -> None:
    block = f"blk.{layer}."
    model.add(f"{block}attn_norm.weight", embd)
    model.add(f"{block}ssm_in.weight", embd, 2 * inner + 2 * groups * state + dt)
    model.add(f"{block}ssm_conv1d.weight", 4, inner + 2 * groups * state, kind="f32")
    model.add(f"{block}ssm_conv1d.bias", inner + 2 * groups * state)
    model.add(f"{block}ssm_dt.bias", dt)
    model.add(f"{block}ssm_a", 1, dt, kind="f32")
    model.add(f"{block}ssm_d", 1, dt, kind="f32")
    model.add(f"{block}ssm_norm.weight", inner // groups, groups, kind="f32")
    model.add(f"{block}ssm_out.weight", inner, embd)


def mamba() -> FakeModel:
    model = _base(
        "mamba",
        embd=2560,
        layers=64,
        heads=0,
        kv=0,
        ff=0,
        vocab=50280,
        context=1048576,
        tied=True,
        ssm__conv_kernel=4,
        ssm__state_size=16,
        ssm__time_step_rank=160,
        ssm__inner_size=5120,
    )
    for layer in range(64):
        block = f"blk.{layer}."
        model.add(block + "attn_norm.weight", 2560)
        model.add(block + "ssm_in.weight", 2560, 10240)
        model.add(block + "ssm_conv1d.weight", 4, 5120, kind="f32")
        model.add(block + "ssm_conv1d.bias", 5120)
        model.add(block + "ssm_x.weight", 5120, 160 + 32)
        model.add(block + "ssm_dt.weight", 160, 5120)
        model.add(block + "ssm_dt.bias", 5120)
        model.add(block + "ssm_a", 16, 5120, kind="f32")
        model.add(block + "ssm_d", 5120)
        model.add(block + "ssm_out.weight", 5120, 2560)
    return model


def mamba2() -> FakeModel:
    model = _base(
        "mamba2",
        embd=2560,
        layers=64,
        heads=0,
        kv=0,
        ff=0,
        vocab=50288,
        context=1048576,
        tied=True,
        ssm__conv_kernel=4,
        ssm__state_size=128,
        ssm__group_count=1,
        ssm__time_step_rank=80,
        ssm__inner_size=5120,
    )
    for layer in range(64):
        _mamba2(model, layer, 2560, 5120, 128, 1, 80)
    return model


def jamba() -> FakeModel:
    attention = [4, 12, 20, 28]
    model = _base(
        "jamba",
        embd=4096,
        layers=32,
        heads=32,
        kv=[8 if layer in attention else 0 for layer in range(32)],
        ff=14336,
        vocab=65536,
        context=262144,
        expert_count=16,
        expert_used_count=2,
        ssm__conv_kernel=4,
        ssm__state_size=16,
        ssm__time_step_rank=256,
        ssm__inner_size=8192,
    )
    for layer in range(32):
        block = f"blk.{layer}."
        if layer in attention:
            _attention(model, layer, 4096, 4096, 1024)
        else:
            model.add(block + "attn_norm.weight", 4096)
            model.add(block + "ssm_in.weight", 4096, 16384)
            model.add(block + "ssm_conv1d.weight", 4, 8192, kind="f32")
            model.add(block + "ssm_conv1d.bias", 8192)
            model.add(block + "ssm_x.weight", 8192, 256 + 32)
            model.add(block + "ssm_dt_norm.weight", 256)
            model.add(block + "ssm_dt.weight", 256, 8192)
            model.add(block + "ssm_dt.bias", 8192)
            model.add(block + "ssm_b_norm.weight", 16)
            model.add(block + "ssm_c_norm.weight", 16)
            model.add(block + "ssm_a", 16, 8192, kind="f32")
            model.add(block + "ssm_d", 8192)
            model.add(block + "ssm_out.weight", 8192, 4096)
        if layer % 2:
            model.add(block + "ffn_norm.weight", 4096)
            _experts(model, layer, 4096, 14336, 16)
        else:
            _dense(model, layer, 4096, 14336)
    return model


def falcon_h1() -> FakeModel:
    model = _base(
        "falcon-h1",
        embd=3072,
        layers=44,
        heads=12,
        kv=2,
        ff=12288,
        vocab=130049,
        context=262144,
        head_dim=128,
        ssm__conv_kernel=4,
        ssm__state_size=256,
        ssm__group_count=1,
        ssm__time_step_rank=24,
        ssm__inner_size=3072,
    )
    for layer in range(44):
        _attention(model, layer, 3072, 1536, 256)
        block = f"blk.{layer}."
        inner, state, groups, dt = (3072, 256, 1, 24)
        model.add(f"{block}ssm_in.weight", 3072, 2 * inner + 2 * groups * state + dt)
        model.add(f"{block}ssm_conv1d.weight", 4, inner + 2 * groups * state, kind="f32")
        model.add(f"{block}ssm_conv1d.bias", inner + 2 * groups * state)
        model.add(f"{block}ssm_dt.bias", dt)
        model.add(f"{block}ssm_a", 1, dt, kind="f32")
        model.add(f"{block}ssm_d", 1, dt, kind="f32")
        model.add(f"{block}ssm_norm.weight", inner // groups, groups, kind="f32")
        model.add(f"{block}ssm_out.weight", inner, 3072)
        _dense(model, layer, 3072, 12288)
    model.tensors = [(n.replace("ffn_norm.weight", "ffn_norm"), s, k) for n, s, k in model.tensors]
    return model


def lfm2() -> FakeModel:
    attention = [2, 5, 8, 10, 12, 14]
    model = _base(
        "lfm2",
        embd=2048,
        layers=16,
        heads=32,
        kv=[8 if layer in attention else 0 for layer in range(16)],
        ff=8192,
        vocab=65536,
        context=128000,
        tied=True,
        shortconv__l_cache=3,
    )
    model.tensors = [t for t in model.tensors if t[0] != "output_norm.weight"]
    model.add("token_embd_norm.weight", 2048)
    for layer in range(16):
        block = f"blk.{layer}."
        if layer in attention:
            _attention(model, layer, 2048, 2048, 512, norms=64)
        else:
            model.add(block + "attn_norm.weight", 2048)
            model.add(block + "shortconv.conv.weight", 3, 2048, kind="f32")
            model.add(block + "shortconv.in_proj.weight", 2048, 6144)
            model.add(block + "shortconv.out_proj.weight", 2048, 2048)
        _dense(model, layer, 2048, 8192)
    return model


def nemotron_h() -> FakeModel:
    pattern = "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-M-"[:52]
    n = len(pattern)
    model = _base(
        "nemotron_h",
        embd=4480,
        layers=n,
        heads=40,
        kv=[8 if c == "*" else 0 for c in pattern],
        ff=[15680 if c == "-" else 0 for c in pattern],
        vocab=131072,
        context=131072,
        head_dim=128,
        ssm__conv_kernel=4,
        ssm__state_size=128,
        ssm__group_count=8,
        ssm__time_step_rank=120,
        ssm__inner_size=9600,
    )
    for layer, c in enumerate(pattern):
        block = f"blk.{layer}."
        if c == "M":
            _mamba2(model, layer, 4480, 9600, 128, 8, 120)
        elif c == "*":
            _attention(model, layer, 4480, 5120, 1024)
        else:
            model.add(block + "attn_norm.weight", 4480)
            model.add(block + "ffn_up.weight", 4480, 15680)
            model.add(block + "ffn_down.weight", 15680, 4480, kind="q6_k")
    return model


def qwen35() -> FakeModel:
    model = _base(
        "qwen35",
        embd=4096,
        layers=32,
        heads=16,
        kv=4,
        ff=12288,
        vocab=248320,
        context=262144,
        attention__key_length=256,
        attention__value_length=256,
        rope__dimension_count=64,
        ssm__conv_kernel=4,
        ssm__state_size=128,
        ssm__group_count=16,
        ssm__time_step_rank=32,
        ssm__inner_size=4096,
        full_attention_interval=4,
    )
    model.keys["rope.dimension_sections"] = [11, 11, 10, 0]
    for layer in range(32):
        block = f"blk.{layer}."
        model.add(block + "attn_norm.weight", 4096)
        if layer % 4 == 3:
            model.add(block + "attn_q.weight", 4096, 8192)
            model.add(block + "attn_k.weight", 4096, 1024)
            model.add(block + "attn_v.weight", 4096, 1024)
            model.add(block + "attn_output.weight", 4096, 4096)
            model.add(block + "attn_q_norm.weight", 256)
            model.add(block + "attn_k_norm.weight", 256)
        else:
            model.add(block + "attn_qkv.weight", 4096, 8192)
            model.add(block + "attn_gate.weight", 4096, 4096)
            model.add(block + "ssm_conv1d.weight", 4, 8192, kind="f32")
            model.add(block + "ssm_dt.bias", 32)
            model.add(block + "ssm_a", 32)
            model.add(block + "ssm_beta.weight", 4096, 32)
            model.add(block + "ssm_alpha.weight", 4096, 32)
            model.add(block + "ssm_norm.weight", 128)
            model.add(block + "ssm_out.weight", 4096, 4096)
        model.add(block + "post_attention_norm.weight", 4096)
        model.add(block + "ffn_gate.weight", 4096, 12288)
        model.add(block + "ffn_up.weight", 4096, 12288)
        model.add(block + "ffn_down.weight", 12288, 4096, kind="q6_k")
    return model


STATE_MODELS: Mapping[str, Callable[[], FakeModel]] = {
    "mamba": mamba,
    "mamba2": mamba2,
    "jamba": jamba,
    "falcon-h1": falcon_h1,
    "lfm2": lfm2,
    "nemotron-h": nemotron_h,
    "qwen35": qwen35,
}
