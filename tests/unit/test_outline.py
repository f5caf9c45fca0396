"""Models of the catalogue before they are here, priced by what is known of them."""

from pathlib import Path

import pytest

from app.core.hardware.machine import imagined_machine
from app.core.models.catalogue import CatalogueEntry, catalogue, entry_for
from app.core.models.load_settings import LoadSettings
from app.core.models.outline import can_outline, outlined
from app.core.models.plan import RAM, plan_memory
from app.core.models.presets import choose
from app.core.models.spec import read_spec
from app.core.settings import Settings
from tests.fakes import gguf_models

GIB = 1 << 30
# Bytes of the published files.
PUBLISHED = {
    "smollm2-135m": 98_362_432,
    "qwen3-0.6b": 639e6,
    "qwen3-4b": 2.50e9,
    "qwen3-8b": 5.03e9,
    "gemma-3-4b": 2.49e9,
    "gpt-oss-20b": 12.11e9,
}


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.name)
def test_outline_is_as_large_as_the_published_file(entry: CatalogueEntry) -> None:
    assert can_outline(entry)
    spec = outlined(entry)
    assert spec.parameters == pytest.approx(entry.parameters, rel=0.002)
    assert spec.size_bytes == pytest.approx(PUBLISHED[entry.name], rel=0.02)
    assert spec.shape is not None
    assert spec.shape.is_known
    assert spec.quantization == entry.quantization


@pytest.mark.real
def test_outline_is_priced_like_the_real_file(smollm2: Path) -> None:
    load = LoadSettings(context_tokens=8192, slots=2)
    guess = plan_memory(outlined(entry_for("smollm2-135m")), load)
    real = plan_memory(read_spec(smollm2), load)
    assert guess.own_bytes == pytest.approx(real.own_bytes, rel=0.05)
    assert guess.mapped_bytes == pytest.approx(real.mapped_bytes, rel=0.05)


def test_outline_of_experts_and_windows_is_priced_like_such_a_file(tmp_path: Path) -> None:
    load = LoadSettings(context_tokens=16384, slots=2, gpu_layers=99)
    made = read_spec(gguf_models.write_model(gguf_models.gpt_oss_20b(), tmp_path / "m.gguf"))
    guess, real = outlined(entry_for("gpt-oss-20b")), made
    one, other = (plan_memory(spec, load, ("CUDA0",)) for spec in (guess, real))
    assert one.device("CUDA0").kv_bytes == other.device("CUDA0").kv_bytes
    assert one.device("CUDA0").total_bytes == pytest.approx(
        other.device("CUDA0").total_bytes, rel=0.08
    )
    assert one.device(RAM).total_bytes == pytest.approx(other.device(RAM).total_bytes, rel=0.5)


def test_outline_goes_through_the_presets_like_any_model() -> None:
    choice = choose(
        outlined(entry_for("gpt-oss-20b")), imagined_machine(32 * GIB, [8 * GIB]), Settings()
    )
    assert 0 < choice.load.experts_in_ram < 24
    assert choice.load.checkpoints
