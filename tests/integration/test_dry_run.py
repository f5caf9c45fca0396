"""The engine's simulation: kept, bounded in time, and what it says when it cannot run."""

from pathlib import Path

import pytest

from app.core.errors import ModelFileMissing, WorkerStartFailed
from app.core.models import dry_run as module
from app.core.models.dry_run import dry_run, dry_run_or_formula, engine_version
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import RAM, plan_memory
from app.core.models.spec import read_spec
from tests.fakes import gguf_models

LOAD = LoadSettings(context_tokens=2048)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return gguf_models.write_model(gguf_models.llama_1b(), tmp_path / "m.gguf")


def test_dry_run_is_kept_for_the_same_file_and_settings(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = read_spec(llama)
    plan = dry_run(spec, LOAD)
    assert plan.source == "dry_run"
    assert plan.own_bytes + plan.mapped_bytes == plan.device(RAM).total_bytes
    monkeypatch.setattr(module, "_argv", lambda: ["/nonexistent/program"])
    assert dry_run(spec, LOAD) is plan
    with pytest.raises(WorkerStartFailed, match="could not be started"):
        dry_run(spec, LoadSettings(context_tokens=2304))
    gguf_models.write_model(gguf_models.qwen2_7b(), llama)
    with pytest.raises(WorkerStartFailed):
        dry_run(spec, LOAD)


def test_dry_run_of_a_real_vocabulary_agrees_with_the_formula(gemma3_270m: Path) -> None:
    spec = read_spec(gemma3_270m)
    exact, formula = dry_run(spec, LOAD), plan_memory(spec, LOAD)
    assert exact.device(RAM).total_bytes == pytest.approx(formula.device(RAM).total_bytes, rel=0.02)


def test_dry_run_past_its_deadline_is_ended(llama: Path) -> None:
    with pytest.raises(WorkerStartFailed, match="took longer"):
        dry_run(read_spec(llama), LoadSettings(context_tokens=512), deadline_s=0.001)


def test_dry_run_of_an_unknown_architecture_leaves_the_formula_with_a_note(tmp_path: Path) -> None:
    fake = gguf_models.llama_1b()
    fake.architecture = "somethingnew"
    spec = read_spec(gguf_models.write_model(fake, tmp_path / "m.gguf"))
    with pytest.raises(WorkerStartFailed, match="somethingnew"):
        dry_run(spec, LOAD)
    plan = dry_run_or_formula(spec, LOAD)
    assert plan.source == "formula"
    assert plan.margin_percent >= 50
    assert "the formula decides" in plan.note


def test_dry_run_of_a_file_that_is_gone_says_so(llama: Path) -> None:
    spec = read_spec(llama)
    llama.unlink()
    with pytest.raises(ModelFileMissing):
        dry_run(spec, LOAD)


def test_dry_run_adds_what_stands_beside_the_model(llama: Path, tmp_path: Path) -> None:
    adapter = gguf_models.FakeModel("llama", {})
    adapter.add("blk.0.attn_q.weight.lora_a", 2048, 512, kind="f16")
    lora = gguf_models.write_model(adapter, tmp_path / "lora.gguf")
    spec = read_spec(llama)
    plain = dry_run(spec, LOAD)
    plan = dry_run(
        spec, LoadSettings(context_tokens=2048, adapters=(str(lora),), prompt_cache_bytes=1 << 28)
    )
    more = plan.device(RAM).total_bytes - plain.device(RAM).total_bytes
    assert more == lora.stat().st_size + (1 << 28)
    assert "adapters" in plan.note


def test_engine_version_is_known_without_importing_the_engine() -> None:
    assert engine_version()
    assert engine_version(("/nonexistent",)) == engine_version()


def test_dry_run_for_a_gpu_that_the_engine_lacks_leaves_the_formula_with_a_note(
    llama: Path,
) -> None:
    spec, load = read_spec(llama), LoadSettings(context_tokens=1024, gpu_layers=99)
    with pytest.raises(WorkerStartFailed, match="no CUDA7"):
        dry_run(spec, load, ("CUDA7",))
    plan = dry_run_or_formula(spec, load, ("CUDA7",))
    assert plan.source == "formula"
    assert plan.device("CUDA7").weights_bytes > 400 << 20
    assert "no CUDA7" in plan.note
