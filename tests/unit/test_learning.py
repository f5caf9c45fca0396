"""What loads took, kept beside what was planned."""

import dataclasses
from pathlib import Path

import pytest

from app.core.models import learning
from app.core.models.learning import Learning, drift_sentence
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.spec import ModelSpec
from app.core.paths import Paths

MIB = 1 << 20
GIB = 1 << 30
SPEC = ModelSpec(
    "m",
    Path("m.gguf"),
    (Path("m.gguf"),),
    GIB,
    "gguf",
    "llama",
    "m",
    "Q4_K_M",
    10,
    4096,
    4,
    True,
    None,
)
LOAD = LoadSettings()
PLAN = MemoryPlan(
    (
        DevicePlan("RAM", weights_bytes=100 * MIB, kv_bytes=900 * MIB),
        DevicePlan("CUDA0", weights_bytes=4 * GIB),
    ),
    own_bytes=900 * MIB,
    mapped_bytes=100 * MIB,
    source="formula",
    margin_percent=15.0,
)


def test_learning_unknown_load_leaves_the_plan(coolhead_home: Paths) -> None:
    assert Learning(coolhead_home).correct(PLAN, SPEC, LOAD, "engine 1") is PLAN


def test_learning_load_that_took_more_raises_the_next_plan(coolhead_home: Paths) -> None:
    taken = {"RAM": 1200 * MIB, "CUDA0": 4 * GIB}
    sentence = Learning(coolhead_home).record(SPEC, LOAD, "engine 1", PLAN, taken)
    assert "1.2 GiB instead of 1000 MiB on RAM" in sentence
    again = Learning(coolhead_home)  # another start
    plan = again.correct(PLAN, SPEC, LOAD, "engine 1")
    assert plan.device("RAM").total_bytes == 1200 * MIB
    assert plan.device("CUDA0").total_bytes == 4 * GIB
    assert (plan.own_bytes, plan.mapped_bytes) == (1100 * MIB, 100 * MIB)
    assert "took before" in plan.note
    assert again.correct(PLAN, SPEC, LOAD, "engine 2") is PLAN
    longer = dataclasses.replace(LOAD, context_tokens=8192)
    assert again.correct(PLAN, SPEC, longer, "engine 1") is PLAN
    faster = dataclasses.replace(LOAD, threads=7)
    assert again.correct(PLAN, SPEC, faster, "engine 1") == plan


def test_learning_load_that_took_less_never_lowers_a_plan(coolhead_home: Paths) -> None:
    known = Learning(coolhead_home)
    known.record(SPEC, LOAD, "e", PLAN, {"RAM": 500 * MIB, "CUDA0": GIB})
    assert known.correct(PLAN, SPEC, LOAD, "e") is PLAN


def test_learning_keeps_the_most_that_was_taken(coolhead_home: Paths) -> None:
    known = Learning(coolhead_home)
    for size in (1100, 1300, 1050):
        known.record(SPEC, LOAD, "e", PLAN, {"RAM": size * MIB})
    record = known.recorded(SPEC, LOAD, "e")
    assert record is not None
    assert (record.taken_bytes["RAM"], record.loads) == (1300 * MIB, 3)


def test_learning_damaged_record_starts_anew(coolhead_home: Paths) -> None:
    (coolhead_home.state / "learned.json").write_text("{ not json")
    known = Learning(coolhead_home)
    assert known.recorded(SPEC, LOAD, "e") is None
    known.record(SPEC, LOAD, "e", PLAN, {"RAM": GIB})
    assert Learning(coolhead_home).recorded(SPEC, LOAD, "e") is not None


def test_learning_state_folder_that_is_gone_stops_nothing(coolhead_home: Paths) -> None:
    known = Learning(dataclasses.replace(coolhead_home, state=coolhead_home.state / "gone"))
    assert known.record(SPEC, LOAD, "e", PLAN, {"RAM": 1000 * MIB}) == ""
    assert known.recorded(SPEC, LOAD, "e") is not None


def test_learning_forgets_the_oldest(coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "MAX_RECORDS", 3)
    known = Learning(coolhead_home)
    for slots in range(1, 6):
        known.record(SPEC, dataclasses.replace(LOAD, slots=slots), "e", PLAN, {"RAM": GIB})
    assert known.recorded(SPEC, dataclasses.replace(LOAD, slots=1), "e") is None
    assert known.recorded(SPEC, dataclasses.replace(LOAD, slots=5), "e") is not None


def test_drift_within_what_the_plan_promises_is_not_told() -> None:
    assert drift_sentence("m", {"RAM": 100 * MIB}, {"RAM": 130 * MIB}) == ""
    assert drift_sentence("m", {"RAM": 10 * GIB}, {"RAM": 10 * GIB + 500 * MIB}) == ""
    assert "on RAM" in drift_sentence("m", {"RAM": 10 * GIB}, {"RAM": 11 * GIB})
