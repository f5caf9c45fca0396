"""The rule that refuses, its limits, and what is proposed instead."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.hardware.machine import Gpu, Machine, imagined_machine
from app.core.lifecycle import PressureLevel
from app.core.lines import share
from app.core.models.fit import GpuLimit, Limits, judge, judge_all, limits_from
from app.core.models.limits import narrowed
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.propose import scaled
from app.core.settings import Settings
from app.guard.lines import Lines
from app.guard.lines import reserve_bytes as guards_reserve
from app.guard.readings import Reading
from app.guard.signals import Signals

MIB = 1 << 20
GIB = 1 << 30
NO_MARGIN = GpuLimit("CUDA0", 0, 0, 0)


def host_plan(own: int, mapped: int = 0, margin: float = 0.0) -> MemoryPlan:
    ram = DevicePlan("RAM", weights_bytes=mapped, kv_bytes=own)
    return MemoryPlan((ram,), own, mapped, "dry_run", margin)


def gpu_plan(size: int, device: str = "CUDA0", overhead: int = 0) -> MemoryPlan:
    parts = (DevicePlan("RAM"), DevicePlan(device, kv_bytes=size, overhead_bytes=overhead))
    return MemoryPlan(parts, 0, 0, "dry_run", 0.0)


def machine(available: int = 16 * GIB, *gpus: Gpu) -> Machine:
    return Machine(32 * GIB, available, 8 * GIB, 8 * GIB, gpus)


def test_fit_host_part_within_what_the_reserve_leaves_fits() -> None:
    limits = Limits(ram_reserve_bytes=2 * GIB)
    assert judge(host_plan(4 * GIB, 10 * GIB), machine(), limits).fits
    refused = judge(host_plan(4 * GIB, 10 * GIB + 1), machine(), limits)
    assert not refused.fits
    assert refused.device == "RAM"
    assert refused.needed_bytes == 14 * GIB + 1
    assert (refused.available_bytes, refused.reserve_bytes) == (16 * GIB, 2 * GIB)
    assert "14.0 GiB" in refused.sentence
    assert "2.0 GiB" in refused.sentence


def test_fit_swap_is_never_counted() -> None:
    no_swap = dataclasses.replace(machine(), swap_total_bytes=0, swap_free_bytes=0)
    plan, limits = host_plan(15 * GIB), Limits(2 * GIB)
    assert judge(plan, machine(), limits) == judge(plan, no_swap, limits)


def test_fit_mapped_weights_of_running_workers_are_subtracted() -> None:
    limits = Limits(2 * GIB)
    plan = host_plan(6 * GIB)
    assert judge(plan, machine(), limits, live_mapped_bytes=8 * GIB).fits
    assert not judge(plan, machine(), limits, live_mapped_bytes=8 * GIB + 1).fits


def test_fit_users_cap_bounds_the_sum_over_workers() -> None:
    limits = Limits(GIB, ram_cap_bytes=8 * GIB)
    plan = host_plan(3 * GIB)
    assert judge(plan, machine(), limits, live_own_bytes=5 * GIB).fits
    refused = judge(plan, machine(), limits, live_own_bytes=4 * GIB, live_mapped_bytes=2 * GIB)
    assert not refused.fits
    assert "your cap of 8.0 GiB" in refused.sentence
    assert "6.0 GiB" in refused.sentence


def test_fit_gpu_reserve_is_of_the_total_not_of_what_is_free() -> None:
    """Another program's use must not be counted twice."""
    card = Gpu("CUDA0", "card", 8 * GIB, 7 * GIB, has_display=True)
    limits = Limits(0, 0, (GpuLimit("CUDA0", GIB, 0, 0),))
    assert judge(gpu_plan(7 * GIB), machine(16 * GIB, card), limits).fits
    assert not judge(gpu_plan(7 * GIB + 1), machine(16 * GIB, card), limits).fits


def test_fit_gpu_margin_is_kept_of_what_is_free() -> None:
    card = Gpu("CUDA0", "card", 8 * GIB, 4 * GIB)
    limits = Limits(0, 0, (GpuLimit("CUDA0", GIB, 0, 128 * MIB),))
    assert judge(gpu_plan(4 * GIB - 128 * MIB), machine(16 * GIB, card), limits).fits
    assert not judge(gpu_plan(4 * GIB - 127 * MIB), machine(16 * GIB, card), limits).fits


def test_fit_gpu_cap_bounds_the_sum_over_workers() -> None:
    card = Gpu("CUDA0", "card", 8 * GIB, 8 * GIB)
    limits = Limits(0, 0, (dataclasses.replace(NO_MARGIN, cap_bytes=4 * GIB),))
    live = {"CUDA0": 3 * GIB}
    assert judge(gpu_plan(GIB), machine(GIB, card), limits, live_gpu_bytes=live).fits
    assert not judge(gpu_plan(GIB + 1), machine(GIB, card), limits, live_gpu_bytes=live).fits


def test_fit_gpu_that_is_gone_is_said() -> None:
    refused = judge(gpu_plan(GIB), machine(), Limits(0))
    assert not refused.fits
    assert "no such GPU" in refused.sentence


def test_fit_hopeless_is_what_an_empty_machine_could_not_take_either() -> None:
    card = Gpu("CUDA0", "card", 8 * GIB, GIB, has_display=True)
    limits = Limits(2 * GIB, 0, (GpuLimit("CUDA0", GIB, 0, 0),))
    full = judge(host_plan(20 * GIB), machine(), limits)
    assert (full.fits, full.is_hopeless, full.most_bytes) == (False, False, 30 * GIB)
    assert judge(host_plan(30 * GIB + 1), machine(), limits).is_hopeless
    assert not judge(host_plan(30 * GIB), machine(32 * GIB), limits).is_hopeless
    capped = Limits(2 * GIB, ram_cap_bytes=4 * GIB)
    assert judge(host_plan(5 * GIB), machine(), capped).is_hopeless
    assert not judge(host_plan(3 * GIB), machine(), capped, live_own_bytes=2 * GIB).is_hopeless
    assert not judge(gpu_plan(7 * GIB), machine(16 * GIB, card), limits).is_hopeless
    assert judge(gpu_plan(7 * GIB + 1), machine(16 * GIB, card), limits).is_hopeless
    assert judge(gpu_plan(GIB, "CUDA7"), machine(), limits).is_hopeless


def test_fit_unified_memory_counts_the_gpu_part_as_ram() -> None:
    gpu = Gpu("MTL0", "Apple GPU", 20 * GIB, 16 * GIB, is_integrated=True, kind="metal")
    plan = MemoryPlan(
        (DevicePlan("RAM", kv_bytes=GIB), DevicePlan("MTL0", weights_bytes=12 * GIB)),
        GIB,
        0,
        "dry_run",
        0.0,
    )
    verdicts = judge_all(plan, machine(16 * GIB, gpu), Limits(2 * GIB))
    assert verdicts[0].needed_bytes == 13 * GIB
    assert all(verdict.fits for verdict in verdicts)
    assert not judge(plan, machine(15 * GIB - 1, gpu), Limits(2 * GIB)).fits


def test_fit_margin_is_on_what_is_unsure_only() -> None:
    parts = (DevicePlan("RAM", weights_bytes=GIB, kv_bytes=GIB, compute_bytes=100 * MIB),)
    plan = MemoryPlan(parts, GIB + 100 * MIB, GIB, "formula", 15.0)
    assert judge(plan, machine(), Limits(0)).needed_bytes == 2 * GIB + 115 * MIB


def test_fit_tightest_memory_is_told_where_all_fit() -> None:
    card = Gpu("CUDA0", "card", 8 * GIB, 8 * GIB)
    verdict = judge(gpu_plan(7 * GIB), machine(16 * GIB, card), Limits(0, 0, (NO_MARGIN,)))
    assert (verdict.device, verdict.headroom_bytes) == ("CUDA0", GIB)


@given(
    own=st.integers(0, 40 * GIB),
    mapped=st.integers(0, 40 * GIB),
    more=st.integers(0, 4 * GIB),
    live=st.integers(0, 20 * GIB),
    cap=st.integers(0, 40 * GIB),
)
def test_fit_is_monotone_in_memory(own: int, mapped: int, more: int, live: int, cap: int) -> None:
    """What is refused stays refused when it is larger, or when more is running."""
    limits = Limits(2 * GIB, ram_cap_bytes=cap)
    before = judge(host_plan(own, mapped), machine(), limits, live)
    larger = judge(host_plan(own + more, mapped), machine(), limits, live)
    fuller = judge(host_plan(own, mapped), machine(), limits, live + more)
    assert before.fits or not larger.fits
    assert before.fits or not fuller.fits
    assert before.fits == (before.headroom_bytes >= 0)


@pytest.mark.parametrize(
    ("ram", "reserve"), [(8 * GIB, 1920 * MIB), (16 * GIB, 2.4 * GIB), (64 * GIB, 6 * GIB)]
)
def test_limits_ram_reserve_follows_the_machine(ram: int, reserve: float) -> None:
    limits = limits_from(Settings(), imagined_machine(ram))
    assert limits.ram_reserve_bytes == pytest.approx(reserve, abs=2)


@pytest.mark.parametrize("ram_gib", [4, 8, 12, 12.8, 16, 24, 64, 256])
def test_limits_load_that_just_fits_leaves_the_guard_calm(ram_gib: float) -> None:
    """What is left beside the largest load that fits is clear of the guard's ELEVATED line."""
    where = imagined_machine(int(ram_gib * GIB))
    limits, lines = limits_from(Settings(), where), Lines()
    left = where.ram_available_bytes - judge(host_plan(0), where, limits).cap_bytes
    elevated = share(lines.elevated_bytes, lines.elevated_percent, where.ram_total_bytes)
    assert left >= elevated * lines.clear_ratio - 1
    assert left == guards_reserve(lines, where.ram_total_bytes)
    signals = Signals(lines, predict=True)
    look = signals.look(Reading(1.0, 0.05, left, where.ram_total_bytes, ()))
    assert look.level is PressureLevel.NORMAL
    assert look.is_clear


def test_fit_nothing_left_is_said_in_words() -> None:
    refused = judge(host_plan(GIB), machine(GIB), Limits(2 * GIB))
    assert "nothing is left for models (1.0 GiB available, 2.0 GiB of it kept" in refused.sentence


def test_limits_screen_decides_the_reserve_of_a_gpu() -> None:
    limits = limits_from(Settings(), imagined_machine(64 * GIB, [24 * GIB, 24 * GIB]))
    assert limits.gpu("CUDA0").reserve_bytes == 1536 * MIB
    assert limits.gpu("CUDA1").reserve_bytes == 256 * MIB


def test_limits_settings_stand_above_what_follows() -> None:
    settings = Settings().replace(
        {
            "memory.ram_reserve_bytes": 5 * GIB,
            "memory.ram_cap_bytes": 9 * GIB,
            "memory.gpu_reserve_bytes.CUDA0": GIB,
            "memory.gpu_caps_bytes.CUDA0": 3 * GIB,
        }
    )
    limits = limits_from(settings, imagined_machine(64 * GIB, [24 * GIB]))
    assert (limits.ram_reserve_bytes, limits.ram_cap_bytes) == (5 * GIB, 9 * GIB)
    assert (limits.gpu("CUDA0").reserve_bytes, limits.gpu("CUDA0").cap_bytes) == (GIB, 3 * GIB)


def test_limits_narrowed_keeps_a_lower_cap_of_the_users() -> None:
    imagined = imagined_machine(64 * GIB, [24 * GIB])
    settings = Settings().replace({"memory.ram_cap_bytes": 4 * GIB})
    shared = narrowed(limits_from(settings, imagined), imagined, 0.5, 0.5)
    assert shared.ram_cap_bytes == 4 * GIB
    assert shared.gpu("CUDA0").cap_bytes == int((24 * GIB - 1536 * MIB) * 0.5)


def test_machine_giving_back_never_exceeds_its_total() -> None:
    card = Gpu("CUDA0", "card", 8 * GIB, 6 * GIB)
    back = machine(30 * GIB, card).giving_back(4 * GIB, {"CUDA0": GIB})
    assert back.ram_available_bytes == 32 * GIB
    assert back.gpus[0].free_bytes == 7 * GIB


def test_scaled_plan_changes_the_weights_alone() -> None:
    ram = DevicePlan("RAM", weights_bytes=8 * GIB, kv_bytes=GIB)
    mapped = MemoryPlan((ram,), GIB, 8 * GIB, "formula", 5.0)
    copied = MemoryPlan((ram,), 9 * GIB, 0, "formula", 5.0)
    assert (scaled(mapped, 0.5).own_bytes, scaled(mapped, 0.5).mapped_bytes) == (GIB, 4 * GIB)
    assert (scaled(copied, 0.5).own_bytes, scaled(copied, 0.5).mapped_bytes) == (5 * GIB, 0)
