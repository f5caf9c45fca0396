"""The formula against the engine's own simulation: every architecture, contexts, slots, KV types."""

from dataclasses import replace
from pathlib import Path

import pytest

from app.core.errors import WorkerStartFailed
from app.core.models.dry_run import dry_run
from app.core.models.load_settings import KvType, LoadSettings
from app.core.models.plan import RAM, DevicePlan, plan_memory
from app.core.models.plan_kv import kv_type_problem
from app.core.models.spec import ModelSpec, read_spec
from tests.fakes import gguf_models
from tests.fakes.gguf_other_models import OTHER_MODELS
from tests.fakes.gguf_state_models import STATE_MODELS

MIB = 1 << 20
FIGURES = [
    (context, slots, kind)
    for context in (4096, 32768)
    for slots in (1, 4)
    for kind in ("f16", "q8_0")
]


def _engine_sum(part: DevicePlan) -> int:
    return part.weights_bytes + part.kv_bytes + part.compute_bytes + part.output_bytes


def _compare(spec: ModelSpec, load: LoadSettings, least_compute: float = 0.97) -> None:
    exact = dry_run(spec, load)
    formula = plan_memory(spec, load)
    said, ours = exact.device(RAM), formula.device(RAM)
    # The engine's table counts whole MiB, in two rows of weights.
    assert abs(ours.weights_bytes - said.weights_bytes) <= max(2 * MIB, said.weights_bytes // 100)
    assert abs(ours.kv_bytes - said.kv_bytes) <= max(MIB, said.kv_bytes // 100)
    assert 0.98 <= _engine_sum(ours) / _engine_sum(said) <= 1.15
    assert least_compute <= ours.compute_bytes / said.compute_bytes <= 1.3
    assert abs(formula.mapped_bytes - exact.mapped_bytes) <= max(2 * MIB, exact.mapped_bytes // 100)


@pytest.mark.parametrize("name", sorted(gguf_models.MODELS))
def test_formula_agrees_with_the_engine(tmp_path: Path, name: str) -> None:
    spec = read_spec(gguf_models.write_model(gguf_models.MODELS[name](), tmp_path / "m.gguf"))
    assert spec.shape is not None
    assert spec.shape.is_known
    for context, slots, kind in FIGURES:
        kv: KvType = "q8_0" if kind == "q8_0" else "f16"
        load = LoadSettings(context_tokens=context, slots=slots, kv_type_k=kv, kv_type_v=kv)
        _compare(spec, load)


MORE = {**OTHER_MODELS, **STATE_MODELS}


@pytest.mark.parametrize("name", sorted(MORE))
def test_formula_agrees_with_the_engine_on_other_architectures(tmp_path: Path, name: str) -> None:
    spec = read_spec(gguf_models.write_model(MORE[name](), tmp_path / "m.gguf"))
    assert spec.shape is not None
    assert spec.shape.is_known
    _compare(spec, LoadSettings(context_tokens=4096), 0.9)
    many = LoadSettings(context_tokens=16384, slots=4, kv_type_k="q8_0", kv_type_v="q8_0")
    if kv_type_problem(spec.shape, many):
        with pytest.raises(WorkerStartFailed):
            dry_run(spec, many)
        many = replace(many, kv_type_k="f16", kv_type_v="f16")
    _compare(spec, many, 0.8)


PLAIN = LoadSettings(context_tokens=4096, slots=3)


@pytest.mark.parametrize(
    "load",
    [
        replace(PLAIN, flash_attention=False),
        replace(PLAIN, kv_unified=True),
        replace(PLAIN, swa_full=True),
        replace(PLAIN, batch_tokens=512, ubatch_tokens=512),
        replace(PLAIN, batch_tokens=2048, ubatch_tokens=64),
        replace(PLAIN, context_tokens=5001, kv_type_k="q4_0", kv_type_v="q8_0"),
        replace(PLAIN, context_tokens=300, slots=1),
        replace(PLAIN, mmap=False),
    ],
    ids=["scores", "unified", "swa-full", "ubatch-512", "ubatch-64", "odd", "short", "copied"],
)
@pytest.mark.parametrize("name", ["llama-8b", "gemma3-27b", "granitehybrid-7b"])
def test_formula_agrees_with_the_engine_on_other_figures(
    tmp_path: Path, name: str, load: LoadSettings
) -> None:
    spec = read_spec(gguf_models.write_model(gguf_models.MODELS[name](), tmp_path / "m.gguf"))
    _compare(spec, load)
