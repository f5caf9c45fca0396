"""Drafts, scales, prices and ways out of the memory page, and the legend of its bars."""

import dataclasses
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.core.errors import SettingsInvalid
from app.core.handle import Snapshot
from app.core.models.plan import plan_memory
from app.core.models.spec import read_spec
from app.core.settings import Settings, all_settings, describe
from app.core.settings_meta import GIB, MIB, Needs
from app.ui.draft import Draft
from app.ui.plan_bar import PlanBar, segments
from app.ui.pricing import Facts, chosen_model, price
from app.ui.scale import scale_for, values_of
from app.ui.settings_form import pages
from app.ui.theme import _DARK, _LIGHT
from app.ui.ways_out import CONTEXT, SLOTS, nearest_that_fits, proposal
from tests.ui import imagined


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return imagined.snapshot(tmp_path)


def _facts(snapshot: Snapshot, ram_gib: int = 16, gpu_gib: int = 0) -> Facts:
    spec = read_spec(Path(snapshot.models[0].path), imagined.MODEL_ID)
    return Facts(imagined.machine(ram_gib, gpu_gib), spec)


def test_draft_value_moved_back_is_no_change() -> None:
    draft = Draft().with_change("model.slots", 4).with_change("desktop.theme", "dark")
    assert dict(draft.changes) == {"model.slots": 4, "desktop.theme": "dark"}
    assert draft.keys_needing(Needs.RELOAD) == ("model.slots",)
    assert draft.pages == {"Memory", "Desktop"}
    draft = draft.with_change("model.slots", 0)
    assert dict(draft.changes) == {"desktop.theme": "dark"}
    assert draft.keys_needing(Needs.RELOAD) == ()
    assert not draft.may_move_memory
    assert draft.with_change("server.port", 9000).keys_needing(Needs.RESTART) == ("server.port",)


def test_draft_rebased_keeps_only_what_has_not_come_true() -> None:
    draft = Draft().with_change("model.slots", 4).with_change("model.threads", 3)
    draft = draft.rebased(Settings().replace({"model.slots": 4}))
    assert dict(draft.changes) == {"model.threads": 3}
    assert draft.value("model.slots") == 4


def test_draft_device_keys_are_kept_apart() -> None:
    draft = Draft().with_change("memory.gpu_caps_bytes.CUDA1", 2 * GIB)
    assert draft.value("memory.gpu_caps_bytes.CUDA0") == 0
    assert draft.settings.memory.gpu_caps_bytes == {"CUDA1": 2 * GIB}


def test_draft_wrong_value_is_refused() -> None:
    with pytest.raises(SettingsInvalid):
        Draft().with_change("server.port", 99_999)


@pytest.mark.parametrize("known", list(all_settings()), ids=lambda known: known.key)
def test_scale_of_every_number_comes_back_to_its_value(known: object) -> None:
    from app.core.settings_meta import Description

    assert isinstance(known, Description)
    if known.choices or known.kind not in {int, float}:
        return
    scale = scale_for(known, 16 * GIB if known.meta.unit == "bytes" else None)
    assert scale.positions <= 1025
    for position in (0, 1, scale.positions // 2, scale.positions):
        value = scale.value(position)
        assert scale.position(value) == position
        assert scale.meant(scale.shown(value)) == pytest.approx(value)


def test_scale_of_sizes_speaks_gib_or_mib_and_ends_at_the_machine() -> None:
    ram_cap = scale_for(describe("memory.ram_cap_bytes"), 16 * GIB)
    assert (ram_cap.suffix, ram_cap.high, ram_cap.step) == (" GiB", 16 * GIB, 256 * MIB)
    cache = scale_for(describe("memory.prompt_cache_bytes"), 16 * GIB)
    assert cache.suffix == " MiB"


def test_pages_come_from_the_settings_with_memory_first() -> None:
    assert pages()[0] == "Memory"
    assert set(pages()) == {known.meta.page for known in all_settings()}


def test_price_bars_are_the_plan_to_the_byte(snapshot: Snapshot) -> None:
    facts = _facts(snapshot, gpu_gib=8)
    priced = price(facts, Settings(), snapshot)
    assert priced.choice is not None
    assert facts.spec is not None
    plan = plan_memory(facts.spec, priced.choice.load, priced.choice.gpus)
    assert [bar.device for bar in priced.bars] == ["RAM", "CUDA0"]
    for bar in priced.bars:
        assert bar.part == plan.device(bar.device)
    assert priced.fits


@pytest.mark.parametrize("paint", [_LIGHT, _DARK])
@pytest.mark.parametrize("context", [0, 8192, 131_072])
def test_segments_fill_the_bar_without_gap(snapshot: Snapshot, context: int, paint: object) -> None:
    settings = Settings().replace({"model.context_tokens": context})
    for bar in price(_facts(snapshot, gpu_gib=8), settings, snapshot).bars:
        found = segments(bar, _LIGHT if paint is _LIGHT else _DARK)
        at = 0
        for one in found:
            assert one.start_bytes == at
            at = one.end_bytes
        assert at == max(bar.total_bytes, bar.others_bytes + bar.part.total_bytes)
        in_model = {one.name: one.size_bytes for one in found}
        assert in_model.get("KV cache", 0) == bar.part.kv_bytes
        assert in_model.get("weights", 0) == bar.part.weights_bytes


def test_price_too_long_context_is_refused_and_the_largest_fits(snapshot: Snapshot) -> None:
    facts = _facts(snapshot, ram_gib=16)
    key = "model.context_tokens"
    settings = Settings().replace({key: 131_072, "model.slots": 2})
    priced = price(facts, settings, snapshot)
    assert not priced.fits
    assert "RAM" in priced.sentence
    values = values_of(describe(key), 131_072)
    best = nearest_that_fits(facts, settings, snapshot, key, values)
    assert best is not None
    assert 0 < best < 131_072
    assert price(facts, settings.replace({key: best}), snapshot).fits
    assert not price(facts, settings.replace({key: best + values.step}), snapshot).fits
    found = proposal(facts, settings, snapshot)
    assert found is not None
    assert price(facts, settings.replace(dict(found.changes)), snapshot).fits


def test_nearest_that_fits_reserve_too_large_gives_the_largest_that_is_not(
    snapshot: Snapshot,
) -> None:
    facts = _facts(snapshot, ram_gib=16)
    key = "memory.ram_reserve_bytes"
    settings = Settings().replace({key: 15 * GIB})
    assert not price(facts, settings, snapshot).fits
    best = nearest_that_fits(facts, settings, snapshot, key, values_of(describe(key), 16 * GIB))
    assert best is not None
    assert best < 15 * GIB
    assert price(facts, settings.replace({key: best}), snapshot).fits


def test_price_of_a_running_model_counts_its_memory_as_its_own(snapshot: Snapshot) -> None:
    worker = imagined.worker()
    facts = _facts(snapshot)
    machine = dataclasses.replace(
        facts.machine, ram_available_bytes=facts.machine.ram_available_bytes - worker.own_bytes
    )
    running = dataclasses.replace(snapshot, workers=(worker,))
    alone = price(facts, Settings(), snapshot).bars[0]
    loaded = price(Facts(machine, facts.spec), Settings(), running).bars[0]
    assert loaded.others_bytes == alone.others_bytes
    assert loaded.part == alone.part
    assert loaded.taken_bytes == worker.taken_bytes["RAM"]
    assert alone.taken_bytes is None


def test_price_another_running_model_counts_with_the_others(snapshot: Snapshot) -> None:
    other = dataclasses.replace(imagined.worker(), model_id="another")
    facts = _facts(snapshot)
    alone = price(facts, Settings(), snapshot).bars[0]
    beside = price(facts, Settings(), dataclasses.replace(snapshot, workers=(other,))).bars[0]
    mapped = other.taken_bytes["RAM"] - other.own_bytes
    assert beside.others_bytes == alone.others_bytes + mapped
    assert beside.cap_bytes == alone.cap_bytes - mapped


def test_price_without_a_model_still_shows_the_machine() -> None:
    facts = Facts(imagined.machine(16, 8), None)
    priced = price(facts, Settings(), Snapshot())
    assert [bar.part.total_bytes for bar in priced.bars] == [0, 0]
    assert "No model" in priced.sentence
    damaged = price(
        dataclasses.replace(facts, problem="x.gguf is cut off."), Settings(), Snapshot()
    )
    assert damaged.sentence == "x.gguf is cut off."
    assert not damaged.fits


def test_chosen_model_is_the_default_then_a_loaded_one(snapshot: Snapshot) -> None:
    first = snapshot.models[0]
    loaded = dataclasses.replace(first, model_id="loaded", is_loaded=True)
    two = dataclasses.replace(snapshot, models=(first, loaded))
    assert chosen_model(Settings(), two) == loaded
    wish = Settings().replace({"model.default": first.model_id})
    assert chosen_model(wish, two) == first
    assert chosen_model(Settings(), Snapshot()) is None


def _hints(facts: Facts, settings: Settings, snapshot: Snapshot) -> dict[str, int | None]:
    most = {CONTEXT: settings.model.context_tokens, SLOTS: settings.model.slots}
    return {
        key: nearest_that_fits(facts, settings, snapshot, key, values_of(describe(key), high))
        for key, high in most.items()
    }


@pytest.mark.parametrize(
    ("ram_gib", "gpu_gib", "slots", "context"),
    [(16, 0, 64, 32_768), (12, 0, 3, 131_072), (24, 0, 64, 8192), (16, 8, 20, 16_384)],
)
def test_hints_are_among_the_ways_that_the_proposal_names(
    snapshot: Snapshot, ram_gib: int, gpu_gib: int, slots: int, context: int
) -> None:
    facts = _facts(snapshot, ram_gib, gpu_gib)
    settings = Settings().replace({SLOTS: slots, CONTEXT: context})
    assert not price(facts, settings, snapshot).fits
    found = proposal(facts, settings, snapshot)
    assert found is not None
    hints = _hints(facts, settings, snapshot)
    assert any(hints.values())
    best = hints[CONTEXT]
    if best:
        assert f"{slots} slots of {best:,} tokens" in found.sentence
        assert price(facts, settings.replace({CONTEXT: best}), snapshot).fits
        assert not price(facts, settings.replace({CONTEXT: best + 512}), snapshot).fits
    most = hints[SLOTS]
    if most:
        count = "1 slot" if most == 1 else f"{most} slots"
        assert f"{count} of {context:,} tokens" in found.sentence
        assert price(facts, settings.replace({SLOTS: most}), snapshot).fits
        assert not price(facts, settings.replace({SLOTS: most + 1}), snapshot).fits


def test_hints_reach_beyond_the_slider(snapshot: Snapshot) -> None:
    facts = _facts(snapshot, 64)
    settings = Settings().replace({SLOTS: 64, CONTEXT: 131_072})
    assert not price(facts, settings, snapshot).fits
    many = settings.replace({CONTEXT: 16_384})
    most = _hints(facts, many, snapshot)[SLOTS]
    assert most is not None
    assert most > 16  # where its slider ends


def test_hint_of_a_size_is_found_to_the_mib(snapshot: Snapshot) -> None:
    facts = _facts(snapshot, 16)
    key = "memory.ram_reserve_bytes"
    settings = Settings().replace({key: 15 * GIB, SLOTS: 1, CONTEXT: 4096})
    assert not price(facts, settings, snapshot).fits
    best = nearest_that_fits(facts, settings, snapshot, key, values_of(describe(key), 16 * GIB))
    assert best is not None
    assert price(facts, settings.replace({key: best}), snapshot).fits
    assert not price(facts, settings.replace({key: best + MIB}), snapshot).fits


def test_proposal_beside_another_model_leaves_its_memory_alone(snapshot: Snapshot) -> None:
    other = dataclasses.replace(imagined.worker(), model_id="another")
    beside = dataclasses.replace(snapshot, workers=(other,))
    facts = _facts(snapshot, 16)
    for changes in (
        {CONTEXT: 131_072, SLOTS: 2},
        {CONTEXT: 131_072, "memory.ram_cap_bytes": 14 * GIB},
    ):
        settings = Settings().replace(changes)
        found = proposal(facts, settings, beside)
        assert found is not None
        assert price(facts, settings.replace(dict(found.changes)), beside).fits


def test_legend_names_every_mark_in_as_many_rows_as_it_takes(
    snapshot: Snapshot, qtbot: QtBot
) -> None:
    running = dataclasses.replace(snapshot, workers=(imagined.worker(),))
    bar = PlanBar()
    qtbot.addWidget(bar)
    bar.resize(1200, 100)
    bar.show_bar(price(_facts(snapshot), Settings(), running).bars[0])
    legend = " ".join(bar.legend())
    for word in ("others", "weights", "KV cache", "free", "reserve", "limit", "taken now"):
        assert word in legend
    wide = bar.sizeHint().height()
    bar.resize(300, 100)
    bar.show()
    qtbot.waitUntil(lambda: bar.sizeHint().height() > wide, timeout=20_000)
