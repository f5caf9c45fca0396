"""Who is asked for a load's price, with which folders, and what is kept of the answer."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.core.backends.base import EngineInfo
from app.core.backends.model_planner import ModelPlanner
from app.core.backends.planner import EngineUse, Live, Priced
from app.core.hardware.machine import imagined_machine
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan, plan_memory
from app.core.models.spec import ModelSpec, read_spec
from app.core.settings import Settings
from tests.fakes import gguf_models

GIB = 1 << 30
MACHINE = imagined_machine(32 * GIB, [])
CARD = imagined_machine(32 * GIB, [24 * GIB])


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    folder = tmp_path_factory.mktemp("models")
    return read_spec(gguf_models.write_model(gguf_models.llama_1b(), folder / "m.gguf"))


def odd_heads(folder: Path) -> ModelSpec:
    """Heads of 80, which are no whole blocks of 32."""
    model = gguf_models._base(
        "llama", embd=2560, layers=4, heads=32, kv=32, ff=6912, vocab=32000, context=8192
    )
    for layer in range(4):
        gguf_models._attention(model, layer, 2560, 2560, 2560)
        gguf_models._dense(model, layer, 2560, 6912)
    return read_spec(gguf_models.write_model(model, folder / "odd.gguf"))


class FakeDryRun:
    """Answers a figure of its own, with a note; remembers what it was asked with."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    def __call__(
        self,
        spec: ModelSpec,
        settings: LoadSettings,
        gpus: Sequence[str] = (),
        *,
        python_folders: Sequence[str] = (),
    ) -> MemoryPlan:
        self.asked.append((tuple(gpus), tuple(python_folders)))
        plan = plan_memory(spec, settings, gpus)
        return dataclasses.replace(plan, note="The engine could not be asked.")


def price(
    spec: ModelSpec,
    info: EngineInfo,
    dry_run: FakeDryRun,
    *,
    has_card: bool = False,
    steps: int = 0,
) -> Priced:
    planner = ModelPlanner(lambda _: CARD if has_card else MACHINE, dry_run)
    return planner.price(spec, Settings(), Live(), EngineUse(info), steps)


def test_planner_fetched_build_is_the_one_that_is_asked(spec: ModelSpec) -> None:
    asked = FakeDryRun()
    price(spec, EngineInfo("xllamacpp", "1", folder="/builds/cuda"), asked, has_card=True)
    gpus = tuple(gpu.device for gpu in CARD.gpus)
    assert asked.asked == [(gpus, ("/builds/cuda",))]


def test_planner_another_engines_folder_is_not_lent_to_the_dry_run(spec: ModelSpec) -> None:
    asked = FakeDryRun()
    info = EngineInfo("llama-cpp-python", "1", folder="/builds/python", is_parallel=False)
    priced = price(spec, info, asked)
    assert asked.asked == [((), ())]
    assert priced.load.slots == 1


def test_planner_gpus_of_another_engine_are_priced_by_the_formula(spec: ModelSpec) -> None:
    asked = FakeDryRun()
    price(spec, EngineInfo("llama-server", "1"), asked, has_card=True)
    assert asked.asked == []


def test_planner_engine_that_cannot_be_asked_leaves_its_note(spec: ModelSpec) -> None:
    priced = price(spec, EngineInfo("xllamacpp", "1"), FakeDryRun())
    assert priced.plan.note == "The engine could not be asked."


def test_planner_heads_that_q8_0_cannot_hold_stay_in_f16_after_kills(tmp_path: Path) -> None:
    priced = price(odd_heads(tmp_path), EngineInfo("xllamacpp", "1"), FakeDryRun(), steps=2)
    assert (priced.load.kv_type_k, priced.load.kv_type_v) == ("f16", "f16")
    assert priced.load.slots == 1


def test_planner_way_out_fits_beside_what_is_running_beneath_the_users_cap(spec: ModelSpec) -> None:
    planner, use = ModelPlanner(lambda _: MACHINE), EngineUse(EngineInfo("xllamacpp", "1"))
    live = Live(mapped_bytes=GIB, own_bytes=4 * GIB)
    asked = {
        "memory.ram_cap_bytes": 8 * GIB,
        "model.context_tokens": 131072,
        "model.slots": 4,
    }
    refused = planner.price(spec, Settings().replace(asked), live, use, 0)
    assert not refused.fit.fits
    found = re.search(r"What fits: (\d+) slots? of ([\d,]+) tokens", refused.way_out)
    assert found is not None
    asked |= {"model.slots": int(found[1]), "model.context_tokens": int(found[2].replace(",", ""))}
    assert planner.price(spec, Settings().replace(asked), live, use, 0).fit.fits
    alone = planner.price(spec, Settings().replace(asked), Live(), use, 0)
    assert alone.fit.headroom_bytes >= 5 * GIB
