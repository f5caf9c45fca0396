"""What presets choose for the machines that people have."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.hardware.machine import Gpu, Machine, imagined_machine
from app.core.models.choice import Choice
from app.core.models.family import best_of, choose_quantization, ladder_for, oddities
from app.core.models.fit import judge, limits_from, propose
from app.core.models.plan import plan_memory
from app.core.models.presets import choose
from app.core.models.presets_file import presets
from app.core.models.spec import ModelSpec, read_spec
from app.core.settings import Settings
from tests.fakes import gguf_models

GIB = 1 << 30
MAKERS: dict[str, Callable[[], gguf_models.FakeModel]] = {
    "8B": gguf_models.llama_8b,
    "1B": gguf_models.llama_1b,
    "32B": gguf_models.qwen3_32b,
    "30B-A3B": gguf_models.qwen3moe_30b,
    "27B-swa": gguf_models.gemma3_27b,
}


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelSpec]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: read_spec(gguf_models.write_model(make(), folder / f"{name}.gguf"))
        for name, make in MAKERS.items()
    }


def machine(gpu_gib: int = 0, ram_gib: int = 32, *more_gpus: int) -> Machine:
    gpus = [size * GIB for size in (gpu_gib, *more_gpus) if size]
    return imagined_machine(ram_gib * GIB, gpus)


def fits(spec: ModelSpec, choice: Choice, where: Machine, settings: Settings) -> bool:
    plan = plan_memory(spec, choice.load, choice.gpus)
    return judge(plan, where, limits_from(settings, where)).fits


@pytest.mark.parametrize("mood", ["quiet", "balanced", "full"])
@pytest.mark.parametrize("ram", [16, 32, 64])
@pytest.mark.parametrize("gpu", [0, 6, 8, 12, 16, 24])
def test_presets_8b_model_always_fits_with_a_useful_context(
    gpu: int, ram: int, mood: str, specs: dict[str, ModelSpec]
) -> None:
    settings = Settings().replace({"model.mood": mood})
    where = machine(gpu, ram)
    choice = choose(specs["8B"], where, settings)
    assert fits(specs["8B"], choice, where, settings)
    assert choice.load.context_tokens >= 4096
    assert bool(choice.load.gpu_layers) == bool(gpu)
    assert len(choice.reasons) >= 5


def test_presets_8_gb_card_holds_an_8b_model_whole(specs: dict[str, ModelSpec]) -> None:
    choice = choose(specs["8B"], machine(8), Settings())
    assert choice.load.gpu_layers == 33
    assert choice.load.kv_type_k == "f16"
    assert choice.load.context_tokens * choice.load.slots >= 8192
    assert choice.warnings == ()


def test_presets_processor_alone_is_modest_and_warns(specs: dict[str, ModelSpec]) -> None:
    choice = choose(specs["8B"], machine(0, 16), Settings())
    load = choice.load
    assert (load.context_tokens, load.slots, load.gpu_layers) == (8192, 2, 0)
    assert load.batch_tokens <= 256
    assert load.threads == 7
    assert "tokens a second" in choice.warnings[0]


def test_presets_moods_take_more_from_quiet_to_full(specs: dict[str, ModelSpec]) -> None:
    tokens = []
    for mood in ("quiet", "balanced", "full"):
        load = choose(specs["8B"], machine(24), Settings().replace({"model.mood": mood})).load
        tokens.append(load.context_tokens * load.slots)
    assert tokens == sorted(set(tokens))


def test_presets_weights_too_large_for_the_card_are_split_and_the_speed_is_told(
    specs: dict[str, ModelSpec],
) -> None:
    choice = choose(specs["32B"], machine(12), Settings())
    assert 0 < choice.load.gpu_layers < 65
    assert "in RAM" in choice.reasons[0]
    assert "partly on the processor" in choice.warnings[0]
    assert fits(specs["32B"], choice, machine(12), Settings())


def test_presets_experts_go_to_ram_before_layers(specs: dict[str, ModelSpec]) -> None:
    choice = choose(specs["30B-A3B"], machine(8), Settings())
    assert choice.load.gpu_layers == 49
    assert 0 < choice.load.experts_in_ram < 48
    assert fits(specs["30B-A3B"], choice, machine(8), Settings())


def test_presets_experts_on_two_cards_fill_both(specs: dict[str, ModelSpec]) -> None:
    where = machine(8, 32, 8)
    choice = choose(specs["30B-A3B"], where, Settings())
    plan = plan_memory(specs["30B-A3B"], choice.load, choice.gpus)
    assert fits(specs["30B-A3B"], choice, where, Settings())
    assert min(plan.device(name).total_bytes for name in choice.gpus) > 4 * GIB


def test_presets_one_card_is_preferred_where_it_holds_all(specs: dict[str, ModelSpec]) -> None:
    choice = choose(specs["8B"], machine(24, 64, 24), Settings())
    assert sorted(choice.load.tensor_split) == [0.0, 1.0]
    both = choose(specs["32B"], machine(24, 64, 8), Settings())
    assert all(share > 0 for share in both.load.tensor_split)


def test_presets_set_context_and_slots_never_push_a_model_into_ram(
    specs: dict[str, ModelSpec],
) -> None:
    settings = Settings().replace({"model.context_tokens": 32768, "model.slots": 8})
    choice = choose(specs["8B"], machine(8, 64), settings)
    assert choice.load.gpu_layers == 33
    assert (choice.load.context_tokens, choice.load.slots) == (32768, 8)
    assert not fits(specs["8B"], choice, machine(8, 64), settings)


def test_presets_who_allows_ram_gets_layers_moved(specs: dict[str, ModelSpec]) -> None:
    settings = Settings().replace(
        {
            "model.context_tokens": 32768,
            "model.slots": 1,
            "model.placement": "may_use_ram",
        }
    )
    choice = choose(specs["8B"], machine(8, 64), settings)
    assert 0 < choice.load.gpu_layers < 33
    assert fits(specs["8B"], choice, machine(8, 64), settings)


def test_presets_limit_on_ram_for_layers_is_kept(specs: dict[str, ModelSpec]) -> None:
    settings = Settings().replace({"model.spill_limit_bytes": GIB})
    choice = choose(specs["32B"], machine(12, 64), settings)
    assert choice.load.gpu_layers == 65
    assert "more than the 1.0 GiB that you allow" in choice.reasons[0]
    assert not fits(specs["32B"], choice, machine(12, 64), settings)


def test_presets_cpu_only_as_set_leaves_the_card_alone(specs: dict[str, ModelSpec]) -> None:
    settings = Settings().replace({"model.placement": "cpu_only"})
    choice = choose(specs["8B"], machine(24), settings)
    assert (choice.load.gpu_layers, choice.gpus) == (0, ())


def test_presets_card_without_an_engine_for_it_is_not_counted_on(
    specs: dict[str, ModelSpec],
) -> None:
    card = Gpu("CUDA0", "RTX", 24 * GIB, 24 * GIB, is_usable=False, reason="no CUDA support")
    where = Machine(32 * GIB, 28 * GIB, gpus=(card,), physical_cores=8, logical_cores=16)
    choice = choose(specs["8B"], where, Settings())
    assert choice.load.gpu_layers == 0
    assert "no CUDA support" in choice.reasons[0]


def test_presets_unified_memory_takes_a_share_of_what_is_available(
    specs: dict[str, ModelSpec],
) -> None:
    gpu = Gpu("MTL0", "Apple GPU", 11 * GIB, 11 * GIB, True, is_integrated=True, kind="metal")
    where = Machine(
        16 * GIB, 11 * GIB, gpus=(gpu,), physical_cores=8, unified_memory=True, system="darwin"
    )
    choice = choose(specs["8B"], where, Settings())
    assert choice.load.gpu_layers == 33
    assert fits(specs["8B"], choice, where, Settings())
    plan = plan_memory(specs["8B"], choice.load, choice.gpus)
    assert sum(part.total_bytes for part in plan.devices) <= 0.8 * 11 * GIB


def test_presets_settings_stand_above_the_preset(specs: dict[str, ModelSpec]) -> None:
    settings = Settings().replace(
        {
            "model.context_tokens": 3000,
            "model.slots": 3,
            "model.kv_type": "q4_0",
            "model.threads": 2,
            "memory.prompt_cache_bytes": 512 << 20,
            "engine.mmap": False,
        }
    )
    load = choose(specs["1B"], machine(0, 16), settings).load
    assert (load.context_tokens, load.slots, load.threads) == (3000, 3, 2)
    assert (load.kv_type_k, load.kv_type_v) == ("q4_0", "q4_0")
    assert load.prompt_cache_bytes == 512 << 20
    assert not load.mmap


def test_presets_context_is_never_longer_than_trained(tmp_path: Path) -> None:
    model = gguf_models.llama_1b()
    model.keys["context_length"] = 2048
    spec = read_spec(gguf_models.write_model(model, tmp_path / "short.gguf"))
    assert choose(spec, machine(24), Settings()).load.context_tokens == 2048
    asked = Settings().replace({"model.context_tokens": 4096})
    assert "trained for 2,048" in choose(spec, machine(24), asked).warnings[0]


def test_presets_weights_that_are_mostly_laid_out_anew_are_copied(
    tmp_path: Path,
) -> None:
    model = gguf_models.llama_8b()
    model.tensors = [
        (name, shape, "q4_0" if kind in {"q4_k", "q6_k"} else kind)
        for name, shape, kind in model.tensors
    ]
    spec = read_spec(gguf_models.write_model(model, tmp_path / "q4_0.gguf"))
    choice = choose(spec, machine(0, 16), Settings())
    assert not choice.load.mmap
    assert any("copied, not mapped" in reason for reason in choice.reasons)
    plan = plan_memory(spec, choice.load)
    mapped = plan_memory(spec, dataclasses.replace(choice.load, mmap=True))
    assert plan.mapped_bytes == 0
    assert plan.own_bytes == mapped.own_bytes + mapped.mapped_bytes
    # On a card nothing is laid out anew.
    assert choose(spec, machine(24, 16), Settings()).load.mmap


def test_presets_weights_that_stay_as_they_are_are_mapped(tmp_path: Path) -> None:
    model = gguf_models.llama_1b()
    model.tensors = [
        (name, shape, "q4_1" if kind in {"q4_k", "q6_k"} else kind)
        for name, shape, kind in model.tensors
    ]
    spec = read_spec(gguf_models.write_model(model, tmp_path / "q4_1.gguf"))
    assert choose(spec, machine(0, 16), Settings()).load.mmap


def test_presets_reserve_below_the_guards_line_is_warned_of(specs: dict[str, ModelSpec]) -> None:
    low = Settings().replace({"memory.ram_reserve_bytes": GIB})
    assert any("unloads idle models" in each for each in _warnings(specs["1B"], low))
    enough = Settings().replace({"memory.ram_reserve_bytes": 2 * GIB})
    assert not any("unloads idle models" in each for each in _warnings(specs["1B"], enough))


def _warnings(spec: ModelSpec, settings: Settings) -> tuple[str, ...]:
    return choose(spec, machine(0, 16), settings).warnings


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"model.slots": 4}, "the length of the balanced mood; 4 slots as set"),
        ({"model.context_tokens": 4096}, "the length as set; it fits"),
        ({"model.context_tokens": 4096, "model.slots": 2}, "2 slots: as set; it fits"),
        ({}, "what the balanced mood asks for"),
    ],
)
def test_presets_reason_says_whose_figure_it_is(
    wish: dict[str, int], words: str, specs: dict[str, ModelSpec]
) -> None:
    choice = choose(specs["1B"], machine(0, 16), Settings().replace(wish))
    assert any(words in reason for reason in choice.reasons), choice.reasons


def test_presets_sliding_window_model_gets_checkpoints(specs: dict[str, ModelSpec]) -> None:
    assert choose(specs["27B-swa"], machine(24, 64), Settings()).load.checkpoints == 2
    assert choose(specs["8B"], machine(24, 64), Settings()).load.checkpoints == 0


def test_presets_machine_that_is_full_gets_the_least_and_is_refused(
    specs: dict[str, ModelSpec],
) -> None:
    where = Machine(8 * GIB, 2 * GIB, physical_cores=4)
    choice = choose(specs["8B"], where, Settings())
    assert (choice.load.context_tokens, choice.load.slots) == (2048, 1)
    limits = limits_from(Settings(), where)
    verdict = judge(plan_memory(specs["8B"], choice.load), where, limits)
    assert not verdict.fits
    assert propose(specs["8B"], choice.load, where, limits) is None


def test_presets_choose_is_quick_enough_for_a_slider(specs: dict[str, ModelSpec]) -> None:
    started = time.perf_counter()
    for spec in specs.values():
        choose(spec, machine(12), Settings())
    assert time.perf_counter() - started < 2


def test_proposal_takes_the_model_to_ram_where_nothing_else_helps(
    specs: dict[str, ModelSpec],
) -> None:
    where = machine(6, 64)
    settings = Settings().replace({"model.placement": "gpu_only"})
    choice = choose(specs["32B"], where, settings)
    limits = limits_from(settings, where)
    proposal = propose(specs["32B"], choice.load, where, limits, choice.gpus)
    assert proposal is not None
    assert dict(proposal.changes)["model.placement"] == "may_use_ram"
    assert "slow" in proposal.sentence
    plan = plan_memory(specs["32B"], proposal.load, choice.gpus)
    assert judge(plan, where, limits).fits


def test_proposal_names_the_next_quantization(specs: dict[str, ModelSpec], tmp_path: Path) -> None:
    model = gguf_models.llama_8b()
    model.tensors = [(n, s, kind if kind == "f32" else "f16") for n, s, kind in model.tensors]
    spec = read_spec(gguf_models.write_model(model, tmp_path / "f16.gguf"))
    where = machine(12)
    settings = Settings().replace({"model.context_tokens": 8192, "model.slots": 1})
    choice = choose(spec, where, settings)
    proposal = propose(spec, choice.load, where, limits_from(settings, where), choice.gpus)
    if proposal is None:
        pytest.fail("a smaller quantization would fit")
    assert proposal.quantization == "Q8_0"


@pytest.mark.parametrize(
    ("gpu", "ram", "size"),
    [(0, 16, "8B"), (0, 64, "8B"), (6, 16, "4B"), (8, 16, "8B"), (12, 32, "14B"), (24, 64, "32B")],
)
def test_family_largest_size_is_what_owners_would_call_right(gpu: int, ram: int, size: str) -> None:
    best = best_of(ladder_for(machine(gpu, ram), Settings()))
    assert best is not None
    assert (best.size, best.quantization) == (size, "Q4_K_M")
    assert best.context_tokens >= 4096


def test_family_processor_alone_gets_no_large_model() -> None:
    choice = choose_quantization(14e9, machine(0, 64), Settings())
    assert not choice.fits
    assert "slow" in choice.reason


def test_family_slow_processor_gets_a_size_that_it_can_read_out() -> None:
    slow = Machine(24 * GIB, 20 * GIB, physical_cores=2)
    choices = ladder_for(slow, Settings())
    best = best_of(choices)
    assert best is not None
    assert best.size == "3B"
    large = next(choice for choice in choices if choice.size == "8B")
    assert "Too slow on this processor: at most 1 token" in large.reason


def test_family_smaller_size_that_needs_more_is_explained() -> None:
    choices = ladder_for(machine(0, 32), Settings())
    needed = {choice.size: choice.needed_bytes for choice in choices if choice.fits}
    assert needed["0.5B"] > needed["1B"]
    (sentence,) = oddities(choices)
    assert "112 KiB of KV cache for each token" in sentence
    assert all(choice.kv_bytes < choice.needed_bytes for choice in choices if choice.fits)


def test_family_room_to_spare_buys_quality() -> None:
    assert choose_quantization(8e9, machine(24, 64), Settings()).quantization == "Q8_0"


def test_family_picks_among_what_is_offered() -> None:
    offered = ["Q2_K", "Q5_K_M", "Q4_K_M"]
    assert choose_quantization(8e9, machine(8), Settings(), offered).quantization == "Q4_K_M"
    assert not choose_quantization(8e9, machine(8), Settings(), ["Q2_K"]).fits


def test_presets_file_is_in_order() -> None:
    file = presets()
    bits = [each.bits for each in file.quantizations]
    assert bits == sorted(bits, reverse=True)
    sizes = [step.parameters for step in file.ladder]
    assert sizes == sorted(sizes)
    assert set(file.moods) == {"quiet", "balanced", "full"}
    for name in (file.best_quantization, file.usual_quantization, file.coarsest_quantization):
        assert file.bits(name)


def test_presets_heads_that_q8_0_cannot_hold_keep_f16_however_little_there_is(
    tmp_path: Path,
) -> None:
    model = gguf_models._base(
        "llama", embd=2560, layers=32, heads=32, kv=32, ff=6912, vocab=32000, context=131072
    )
    for layer in range(32):
        gguf_models._attention(model, layer, 2560, 2560, 2560)
        gguf_models._dense(model, layer, 2560, 6912)
    spec = read_spec(gguf_models.write_model(model, tmp_path / "odd.gguf"))
    for ram_gib in (3, 4, 6, 8, 16):
        where = machine(0, ram_gib)
        load = choose(spec, where, Settings()).load
        assert (load.kv_type_k, load.kv_type_v) == ("f16", "f16")
        found = propose(spec, load, where, limits_from(Settings(), where))
        assert found is None or found.load.kv_type_k == "f16"
