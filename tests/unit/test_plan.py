"""The memory plan by hand-made sums: caches, placement, companions, and what is not known."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.models.load_settings import KvType, LoadSettings
from app.core.models.plan import RAM, plan_memory
from app.core.models.spec import ModelSpec, read_spec
from tests.fakes import gguf_models

KIB, MIB = 1 << 10, 1 << 20
PLAIN = LoadSettings(context_tokens=4096)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], ModelSpec]:
    folder = tmp_path_factory.mktemp("models")

    def make(name: str) -> ModelSpec:
        path = folder / f"{name}.gguf"
        if not path.exists():
            gguf_models.write_model(gguf_models.MODELS[name](), path)
        return read_spec(path)

    return make


Maker = Callable[[str], ModelSpec]


def _kv(spec: ModelSpec, load: LoadSettings) -> int:
    return plan_memory(spec, load).device(RAM).kv_bytes


@pytest.mark.parametrize(
    ("name", "token_bytes"),
    [
        ("llama2-7b", 512 * KIB),  # 32 layers x 4,096 x 2 x 2 bytes
        ("llama-8b", 128 * KIB),  # 32 layers x 8 heads x 128 x 2 x 2 bytes
        ("qwen2-7b", 56 * KIB),
        ("qwen3-32b", 256 * KIB),
        ("deepseek2-lite", 27 * 576 * 2),  # the latent row, and no V
    ],
)
def test_kv_of_a_token_is_heads_times_length(model: Maker, name: str, token_bytes: int) -> None:
    assert _kv(model(name), PLAIN) == 4096 * token_bytes
    assert _kv(model(name), replace(PLAIN, slots=4)) == 4 * 4096 * token_bytes


@pytest.mark.parametrize(
    ("kind", "share"), [("f32", 2.0), ("q8_0", 34 / 64), ("q4_0", 18 / 64), ("q5_1", 24 / 64)]
)
def test_kv_type_scales_the_cache(model: Maker, kind: KvType, share: float) -> None:
    spec = model("llama-8b")
    load = replace(PLAIN, kv_type_k=kind, kv_type_v=kind)
    assert _kv(spec, load) == share * _kv(spec, PLAIN)
    half = replace(PLAIN, kv_type_k=kind)
    assert _kv(spec, half) == (share + 1) / 2 * _kv(spec, PLAIN)


@pytest.mark.parametrize(
    ("context", "slots", "unified", "cells"),
    [
        (4096, 3, False, 3 * 4096),
        (1000, 3, False, 3 * 1024),
        (5001, 3, True, 15104),
        (1, 1, False, 256),
    ],
)
def test_cells_are_padded_as_the_engine_pads(
    model: Maker, context: int, slots: int, unified: bool, cells: int
) -> None:
    load = LoadSettings(context_tokens=context, slots=slots, kv_unified=unified)
    assert _kv(model("llama-8b"), load) == cells * 128 * KIB


def test_window_layers_keep_a_window_and_a_batch(model: Maker) -> None:
    spec = model("gemma3-27b")
    row = 16 * 128 * 2 * 2
    load = LoadSettings(context_tokens=32768)
    assert _kv(spec, load) == row * (10 * 32768 + 52 * 1280)
    assert _kv(spec, replace(load, swa_full=True)) == row * 62 * 32768
    shared = replace(load, slots=4, kv_unified=True)
    assert _kv(spec, shared) == row * (10 * 4 * 32768 + 52 * (4 * 1024 + 256))


def test_recurrent_layers_keep_a_state_for_each_slot(model: Maker) -> None:
    spec = model("qwen3next-80b")
    attention = 12 * 2 * 256 * 2 * 2
    state = 36 * 4 * (3 * (4096 + 2 * 16 * 128) + 128 * 4096)
    assert _kv(spec, PLAIN) == 4096 * attention + state
    assert _kv(spec, replace(PLAIN, slots=4)) == 4 * (4096 * attention + state)


def test_parts_of_a_plan_add_up(model: Maker) -> None:
    load = replace(PLAIN, prompt_cache_bytes=256 * MIB)
    plan = plan_memory(model("llama-8b"), load)
    ram = plan.device(RAM)
    assert plan.own_bytes + plan.mapped_bytes == ram.total_bytes
    assert ram.cache_bytes == 256 * MIB
    assert ram.output_bytes == 4 * 128256
    assert plan.source == "formula"
    assert plan.note == ""
    copied = plan_memory(model("llama-8b"), replace(load, mmap=False))
    assert copied.mapped_bytes == 0
    assert copied.own_bytes == ram.total_bytes


def test_repacked_weights_are_owned_and_tied_embeddings_are_copied(
    model: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model("llama-1b")
    assert spec.shape is not None
    repacked = 16 * (2048 * (2048 + 512 + 2048) + 2 * 2048 * 8192) * 144 // 256
    tied = 2048 * 128256 * 144 // 256
    plan = plan_memory(spec, PLAIN)
    tensors = gguf_models.llama_1b().size_bytes
    assert plan.device(RAM).weights_bytes == tensors + tied
    assert plan.mapped_bytes == tensors - repacked


def test_checkpoints_cost_only_models_that_forget(model: Maker) -> None:
    load = replace(PLAIN, checkpoints=8, slots=2)
    assert plan_memory(model("llama-8b"), load).device(RAM).cache_bytes == 0
    window = plan_memory(model("gemma3-27b"), load).device(RAM).cache_bytes
    assert window == 8 * 2 * 52 * 1280 * 16 * 128 * 2 * 2


def test_all_layers_on_a_gpu_leave_embeddings_and_inputs_in_ram(model: Maker) -> None:
    spec = model("llama-8b")
    plan = plan_memory(spec, replace(PLAIN, gpu_layers=99), ("CUDA0",))
    gpu, ram = plan.device("CUDA0"), plan.device(RAM)
    embeddings = 4096 * 128256 * 144 // 256
    assert plan.mapped_bytes == embeddings == ram.weights_bytes
    assert gpu.weights_bytes == gguf_models.llama_8b().size_bytes - embeddings
    assert (gpu.kv_bytes, ram.kv_bytes) == (4096 * 128 * KIB, 0)
    assert ram.compute_bytes == 256 * 4096 * 4 + 256 * 4096 * 2
    assert gpu.overhead_bytes > 0


def test_some_layers_on_a_gpu_share_the_cache(model: Maker) -> None:
    spec = model("llama-8b")
    plan = plan_memory(spec, replace(PLAIN, gpu_layers=9), ("CUDA0",))
    # Nine counted from the end: the output layer and eight more.
    assert plan.device("CUDA0").kv_bytes == 8 * 4096 * 4 * KIB
    assert plan.device(RAM).kv_bytes == 24 * 4096 * 4 * KIB
    assert plan.device(RAM).compute_bytes > 0


def test_tensor_split_shares_layers_between_gpus(model: Maker) -> None:
    spec = model("qwen3-32b")
    load = replace(PLAIN, gpu_layers=65, tensor_split=(3.0, 1.0))
    plan = plan_memory(spec, load, ("CUDA0", "CUDA1"))
    first, second = plan.device("CUDA0"), plan.device("CUDA1")
    assert first.kv_bytes + second.kv_bytes == 4096 * 256 * KIB
    assert 2.5 < first.kv_bytes / second.kv_bytes < 3.5
    alone = plan_memory(spec, replace(load, tensor_split=(0.0, 1.0)), ("CUDA0", "CUDA1"))
    assert alone.device("CUDA0").total_bytes == 0


def test_experts_in_ram_leave_the_gpu(model: Maker) -> None:
    spec = model("qwen3moe-30b")
    load = replace(PLAIN, gpu_layers=99)
    whole = plan_memory(spec, load, ("CUDA0",))
    part = plan_memory(spec, replace(load, experts_in_ram=24), ("CUDA0",))
    assert spec.shape is not None
    experts = sum(layer.expert_bytes for layer in spec.shape.layers[:24])
    moved = whole.device("CUDA0").weights_bytes - part.device("CUDA0").weights_bytes
    assert moved == experts == part.device(RAM).weights_bytes - whole.device(RAM).weights_bytes
    assert whole.device("CUDA0").kv_bytes == part.device("CUDA0").kv_bytes


def test_gpu_layers_without_a_gpu_stay_in_ram(model: Maker) -> None:
    spec = model("llama-8b")
    assert plan_memory(spec, replace(PLAIN, gpu_layers=99)) == plan_memory(spec, PLAIN)


def test_draft_model_encoder_and_adapter_are_in_the_plan(model: Maker, tmp_path: Path) -> None:
    spec = model("llama-8b")
    draft = model("llama-1b")
    encoder = gguf_models.FakeModel(
        "clip",
        {
            "vision.image_size": 336,
            "vision.patch_size": 14,
            "vision.embedding_length": 1024,
            "vision.feed_forward_length": 4096,
            "vision.attention.head_count": 16,
        },
    )
    encoder.add("v.blk.0.attn_q.weight", 1024, 1024, kind="f16")
    mmproj = gguf_models.write_model(encoder, tmp_path / "mmproj.gguf")
    adapter = gguf_models.FakeModel("llama", {})
    adapter.add("blk.0.attn_q.weight.lora_a", 4096, 16, kind="f16")
    lora = gguf_models.write_model(adapter, tmp_path / "lora.gguf")
    plain = plan_memory(spec, PLAIN)
    load = replace(PLAIN, draft=str(draft.path), mmproj=str(mmproj), adapters=(str(lora),))
    plan = plan_memory(spec, load)
    alone = plan_memory(draft, PLAIN)
    more = plan.device(RAM).weights_bytes - plain.device(RAM).weights_bytes
    files = mmproj.stat().st_size + lora.stat().st_size
    assert more == alone.device(RAM).weights_bytes + files
    assert plan.device(RAM).kv_bytes == plain.device(RAM).kv_bytes + alone.device(RAM).kv_bytes
    assert plan.device(RAM).overhead_bytes == plain.device(RAM).overhead_bytes
    patches = (336 // 14) ** 2
    encoder_step = 4 * patches * (5 * 1024 + 3 * 4096 + 16 * patches)
    assert (
        plan.device(RAM).compute_bytes
        == plain.device(RAM).compute_bytes + alone.device(RAM).compute_bytes + encoder_step
    )
    assert plan.own_bytes + plan.mapped_bytes == plan.device(RAM).total_bytes
    gpu = plan_memory(spec, replace(load, gpu_layers=99), ("CUDA0",))
    assert gpu.device("CUDA0").weights_bytes > files + draft.size_bytes


def test_kv_type_that_the_engine_would_refuse_is_named(model: Maker) -> None:
    quantized = replace(PLAIN, kv_type_k="q8_0", kv_type_v="q8_0")
    assert plan_memory(model("llama-8b"), quantized).note == ""
    scores = replace(quantized, flash_attention=False)
    assert "flash attention" in plan_memory(model("llama-8b"), scores).note


def test_unknown_architecture_says_that_the_dry_run_decides(tmp_path: Path) -> None:
    fake = gguf_models.llama_1b()
    fake.architecture = "somethingnew"
    spec = read_spec(gguf_models.write_model(fake, tmp_path / "m.gguf"))
    plan = plan_memory(spec, PLAIN)
    assert "somethingnew" in plan.note
    assert "dry run" in plan.note
    assert plan.margin_percent >= 50


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(gguf_models.MODELS)),
    context=st.integers(1, 300_000),
    slots=st.integers(1, 32),
    kind=st.sampled_from(("f16", "q8_0", "q4_0")),
    unified=st.booleans(),
    flash=st.booleans(),
    layers=st.integers(0, 100),
)
def test_plan_grows_with_context_and_slots(
    model: Maker,
    name: str,
    context: int,
    slots: int,
    kind: KvType,
    unified: bool,
    flash: bool,
    layers: int,
) -> None:
    spec = model(name)
    load = LoadSettings(
        context_tokens=context,
        slots=slots,
        kv_type_k=kind,
        kv_type_v=kind,
        kv_unified=unified,
        flash_attention=flash,
        gpu_layers=layers,
    )
    gpus = ("CUDA0", "CUDA1")
    plan = plan_memory(spec, load, gpus)
    assert plan.own_bytes + plan.mapped_bytes == plan.device(RAM).total_bytes
    weights = sum(part.weights_bytes for part in plan.devices)
    assert spec.header is not None
    assert sum(tensor.size_bytes for tensor in spec.header.tensors) <= weights
    for larger in (replace(load, context_tokens=context + 1000), replace(load, slots=slots + 1)):
        bigger = plan_memory(spec, larger, gpus)
        for part in plan.devices:
            assert part.total_bytes <= bigger.device(part.device).total_bytes
