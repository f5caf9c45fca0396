"""The guard's decisions, sample by sample, without clock or kernel."""

from typing import Any

import pytest
from msgspec.structs import replace

from app.core.lifecycle import ExitCause, PressureLevel
from app.guard.lines import GIB, MIB, Lines
from app.guard.policy import Policy
from app.guard.readings import Action, Reading, WorkerReading

TOTAL = 16 * GIB
PLENTY = 12 * GIB
ELEVATED_LINE = int(TOTAL * 0.12)
CRITICAL_LINE = int(TOTAL * 0.06)
KILL_LINE = int(TOTAL * 0.03)


def worker(name: str = "w", own_mib: float = 900, **values: Any) -> WorkerReading:
    defaults: dict[str, Any] = {
        "planned_own_bytes": 1024 * MIB,
        "cap_own_bytes": 1536 * MIB,
        "in_flight": 1,
    }
    return WorkerReading(name, f"model-{name}", int(own_mib * MIB), **(defaults | values))


class Run:
    """A policy and the readings it is fed, 50 ms apart."""

    def __init__(self, lines: Lines | None = None, *, predict: bool = True) -> None:
        self.policy = Policy(lines or Lines(), predict=predict)
        self.at_s = 1000.0
        self.period_s = 0.05

    def feed(
        self,
        *workers: WorkerReading,
        available: int = PLENTY,
        after_s: float | None = None,
        **values: Any,
    ) -> list[Action]:
        self.at_s += self.period_s if after_s is None else after_s
        reading = Reading(self.at_s, self.period_s, available, TOTAL, workers, **values)
        return self.policy.step(reading)

    @property
    def level(self) -> int:
        return int(self.policy.level)

    def hold(self, seconds: float, *workers: WorkerReading, **values: Any) -> list[Action]:
        """Feeds the same for a while."""
        actions: list[Action] = []
        for _ in range(round(seconds / self.period_s)):
            actions += self.feed(*workers, **values)
        return actions


def steps(actions: list[Action]) -> list[str]:
    return [action.step for action in actions]


def test_policy_quiet_machine_says_nothing() -> None:
    run = Run()
    assert run.hold(1, worker()) == []
    assert run.level == PressureLevel.NORMAL


def test_policy_worker_at_its_cap_is_killed_with_the_numbers() -> None:
    run = Run(predict=False)
    run.feed(worker())
    actions = run.feed(worker(own_mib=1536))
    (kill,) = [action for action in actions if action.step == "kill"]
    assert kill.cause is ExitCause.CAP_EXCEEDED
    assert kill.worker_id == "w"
    assert kill.line_bytes == 1536 * MIB
    assert "1.5 GiB" in kill.sentence
    assert "planned 1.0 GiB" in kill.sentence
    assert run.level == PressureLevel.KILL
    assert run.policy.kills_in_window == 1


def test_policy_fast_growth_is_killed_before_the_cap() -> None:
    run = Run()
    run.feed(worker(own_mib=1200))
    actions = run.feed(worker(own_mib=1400))  # 4,000 MiB/s: 1,660 at the next sample
    assert "kill" in steps(actions)
    assert "growing so fast" in next(one for one in actions if one.step == "kill").sentence


def test_policy_fast_growth_below_the_plan_is_loading() -> None:
    run = Run()
    run.feed(worker(own_mib=10))
    assert run.feed(worker(own_mib=1024)) == []


def test_policy_without_prediction_waits_for_the_cap() -> None:
    run = Run(predict=False)
    run.feed(worker(own_mib=1200))
    assert "kill" not in steps(run.feed(worker(own_mib=1400)))


def test_policy_worker_without_cap_is_never_over_it() -> None:
    run = Run()
    assert run.feed(worker(own_mib=9000, cap_own_bytes=0, planned_own_bytes=0)) == []


def test_policy_near_cap_closes_admission_for_that_worker_only() -> None:
    run = Run()
    run.hold(0.5, worker(own_mib=1400))
    run2 = Run()
    actions = run2.feed(worker(own_mib=1400), worker("other"))
    assert steps(actions) == ["close_admission", "drop_caches"]
    assert {action.worker_id for action in actions} == {"w"}
    assert run2.level == PressureLevel.ELEVATED


def test_policy_large_worker_at_its_plan_is_not_near_its_cap() -> None:
    run = Run()
    large = worker(own_mib=10240, planned_own_bytes=10 * GIB, cap_own_bytes=11 * GIB)
    assert run.hold(1, large) == []


def test_policy_low_memory_closes_for_all_and_unloads_the_least_recently_used() -> None:
    run = Run()
    idle = [
        worker("new", in_flight=0, last_used_s=20),
        worker("old", in_flight=0, last_used_s=10),
        worker("busy"),
    ]
    actions = run.feed(*idle, available=ELEVATED_LINE - 10 * MIB)
    assert steps(actions) == ["close_admission", "drop_caches", "unload_idle"]
    assert actions[0].worker_id == ""
    assert actions[2].worker_id == "old"  # 900 MiB are enough to be clear of the line
    assert actions[2].needed_bytes == int(ELEVATED_LINE * 1.25) - (ELEVATED_LINE - 10 * MIB)
    assert run.feed(*idle, available=ELEVATED_LINE - 10 * MIB) == []


def test_policy_low_memory_unloads_as_many_as_are_needed_and_asks_again() -> None:
    run = Run()
    idle = [worker(name, in_flight=0, own_mib=200) for name in "abc"]
    low = {"available": ELEVATED_LINE - 10 * MIB}
    asked = [one.worker_id for one in run.feed(*idle, **low) if one.step == "unload_idle"]
    assert asked == ["a", "b", "c"]
    run.policy.done("unload_idle", "a", run.at_s, ok=True)
    again = run.hold(5.2, *idle, **low)
    assert [one.worker_id for one in again if one.step == "unload_idle"] == ["a", "b", "c"]


def test_policy_admits_again_only_when_clear_for_a_while() -> None:
    run = Run()
    run.feed(worker(), available=ELEVATED_LINE - 1)
    assert run.hold(5, worker(), available=int(ELEVATED_LINE * 1.2)) == []
    assert run.hold(2.9, worker(), available=int(ELEVATED_LINE * 1.3)) == []
    actions = run.hold(0.3, worker(), available=int(ELEVATED_LINE * 1.3))
    assert steps(actions) == ["admit"]
    assert run.level == PressureLevel.NORMAL


def test_policy_memory_around_the_line_does_not_flap() -> None:
    run = Run()
    actions: list[Action] = []
    for turn in range(400):
        off = -1 if turn % 7 < 3 else int(ELEVATED_LINE * 0.2)
        actions += run.feed(worker(), available=ELEVATED_LINE + off)
    assert steps(actions) == ["close_admission", "drop_caches"]


def test_policy_critical_cancels_then_kills_what_does_not_end() -> None:
    run = Run()
    low = {"available": CRITICAL_LINE - 1}
    actions = run.feed(worker(), **low)
    assert steps(actions) == ["close_admission", "drop_caches", "cancel_newest"]
    assert actions[-1].deadline_s == 0.5
    assert run.level == PressureLevel.CRITICAL
    assert run.hold(0.4, worker(), **low) == []
    actions = run.hold(0.2, worker(), **low)
    assert steps(actions)[:1] == ["kill"]
    assert actions[0].cause is ExitCause.CANCEL_TIMED_OUT
    assert "did not end within 0.5 s" in actions[0].sentence


def test_policy_critical_cancelled_in_time_is_no_kill() -> None:
    run = Run()
    run.feed(worker(), available=CRITICAL_LINE - 1)
    run.policy.done("cancel_newest", "", run.at_s, ok=True)
    assert run.hold(0.45, worker(), available=CRITICAL_LINE - 1) == []
    assert run.hold(2.9, worker(), available=PLENTY) == []
    assert run.level == PressureLevel.CRITICAL
    assert steps(run.hold(0.3, worker(), available=PLENTY)) == ["admit"]


def test_policy_critical_still_short_after_a_cancel_asks_for_the_next() -> None:
    run = Run()
    run.feed(worker(), available=CRITICAL_LINE - 1)
    run.policy.done("cancel_newest", "", run.at_s, ok=True)
    actions = run.hold(0.7, worker(), available=CRITICAL_LINE - 1)
    assert steps(actions) == ["cancel_newest"]


def test_policy_failed_cancel_runs_into_its_deadline() -> None:
    run = Run()
    run.feed(worker(), available=CRITICAL_LINE - 1)
    run.policy.done("cancel_newest", "", run.at_s, ok=False)
    run.policy.done("cancel_newest_of_another_time", "", run.at_s, ok=True)
    assert "kill" in steps(run.hold(0.6, worker(), available=CRITICAL_LINE - 1))


def test_policy_done_without_a_cancel_is_ignored() -> None:
    run = Run()
    run.policy.done("cancel_newest", "", run.at_s, ok=True)
    assert run.feed(worker()) == []


def test_policy_critical_with_idle_workers_only_gives_them_time_to_go() -> None:
    run = Run()
    low = {"available": CRITICAL_LINE - 1}
    idle = worker(in_flight=0)
    assert steps(run.feed(idle, **low))[-1] == "unload_idle"
    assert run.hold(1.9, idle, **low) == []
    actions = run.hold(0.3, idle, **low)
    assert steps(actions)[:1] == ["kill"]
    assert actions[0].cause is ExitCause.MACHINE_MEMORY_LOW


def test_policy_last_line_kills_the_largest_that_clears_it() -> None:
    run = Run()
    low = {"available": KILL_LINE - 100 * MIB}
    actions = run.feed(worker("small", own_mib=200), worker("large", own_mib=800), **low)
    (kill,) = [action for action in actions if action.step == "kill"]
    assert kill.worker_id == "large"
    assert kill.cause is ExitCause.MACHINE_MEMORY_LOW
    assert "gives back 800 MiB" in kill.sentence


def test_policy_last_line_prefers_an_idle_worker() -> None:
    run = Run()
    low = {"available": KILL_LINE - 100 * MIB}
    actions = run.feed(worker("idle", own_mib=200, in_flight=0), worker("large"), **low)
    assert [one.worker_id for one in actions if one.step == "kill"] == ["idle"]


def test_policy_last_line_takes_the_one_over_its_plan_first() -> None:
    run = Run()
    low = {"available": KILL_LINE - 100 * MIB}
    over = worker("over", own_mib=300, planned_own_bytes=100 * MIB, cap_own_bytes=900 * MIB)
    actions = run.feed(over, worker("large"), **low)
    assert [one.worker_id for one in actions if one.step == "kill"] == ["over"]


def test_policy_other_programs_are_named_and_no_worker_in_its_plan_dies() -> None:
    run = Run()
    values: dict[str, Any] = {
        "available": KILL_LINE - 200 * MIB,
        "grown_program": "compiler",
        "grown_bytes": 6 * GIB,
    }
    actions = run.hold(5, worker(own_mib=100), **values)
    assert "kill" not in steps(actions)
    (asked,) = [action for action in actions if action.step == "ask_user"]
    assert "compiler grew by 6.0 GiB" in asked.sentence


def test_policy_memory_that_our_own_load_took_is_blamed_on_no_other_program() -> None:
    short: dict[str, Any] = {
        "available": ELEVATED_LINE - MIB,
        "grown_program": "compiler",
        "grown_bytes": GIB,
    }
    large = worker(own_mib=6000, planned_own_bytes=6 * GIB, cap_own_bytes=7 * GIB, in_flight=0)
    loading = replace(large, is_loading=True, grown_bytes=6000 * MIB)
    (close, *_) = Run().feed(loading, **short)
    assert "model-w is being loaded and has taken 5.9 GiB" in close.sentence
    (close, *_) = Run().feed(replace(loading, is_loading=False), **short)
    assert "model-w, loaded a moment ago, has taken 5.9 GiB" in close.sentence
    assert "compiler" not in close.sentence
    (close, *_) = Run().feed(large, **short)  # it has had that for long
    assert "compiler grew by 1.0 GiB" in close.sentence


def test_policy_low_machine_without_workers_closes_admission_and_blames_no_one() -> None:
    run = Run()
    actions = run.hold(3, available=KILL_LINE - 1)
    assert steps(actions) == ["close_admission", "drop_caches"]


def test_policy_one_kill_at_a_time_and_a_pause_until_memory_is_seen() -> None:
    run = Run()
    low = {"available": KILL_LINE - 100 * MIB}
    actions = run.feed(worker("a"), worker("b", own_mib=800), **low)
    assert [one.worker_id for one in actions if one.step == "kill"] == ["a"]
    ending = worker("a", is_ending=True)
    assert run.hold(1, ending, worker("b", own_mib=800), **low) == []
    assert run.hold(0.45, worker("b", own_mib=800), **low) == []
    actions = run.hold(0.2, worker("b", own_mib=800), **low)
    assert [one.worker_id for one in actions if one.step == "kill"] == ["b"]


def test_policy_cap_kill_does_not_wait_for_another_end() -> None:
    run = Run()
    run.feed(worker("a", own_mib=1600), worker("b"))
    actions = run.feed(worker("a", own_mib=1600, is_ending=True), worker("b", own_mib=1600))
    assert [one.worker_id for one in actions if one.step == "kill"] == ["b"]


def test_policy_cool_down_ends_with_admission_after_its_time() -> None:
    run = Run()
    run.feed(worker(own_mib=1600))
    run.feed(worker(own_mib=1600, is_ending=True))
    assert run.level == PressureLevel.KILL
    run.feed()
    assert run.level == PressureLevel.CRITICAL
    actions = run.hold(9.5)
    assert run.level == PressureLevel.COOL_DOWN
    assert actions == []
    assert steps(run.hold(1)) == ["admit"]
    assert run.level == PressureLevel.NORMAL


def test_policy_cool_down_lasts_while_memory_is_short() -> None:
    run = Run()
    run.feed(worker(own_mib=1600))
    run.hold(20, available=int(TOTAL * 0.09))
    assert run.level == PressureLevel.COOL_DOWN
    assert steps(run.hold(4)) == ["admit"]


def test_policy_third_kill_in_ten_minutes_asks() -> None:
    run = Run()
    for number in range(3):
        actions = run.feed(worker(f"w{number}", own_mib=1600))
        run.hold(1)
    assert steps(actions)[:2] == ["kill", "ask_user"]
    assert "3 times in 10 minutes" in actions[1].sentence


def test_policy_kills_of_long_ago_do_not_count() -> None:
    run = Run()
    for number in range(3):
        actions = run.feed(worker(f"w{number}", own_mib=1600))
        run.feed(after_s=400)
    assert "ask_user" not in steps(actions)
    assert run.policy.kills_in_window == 1


def test_policy_kernel_kills_count_as_well() -> None:
    run = Run()
    assert run.policy.note_end(ExitCause.KERNEL_OOM, "a", run.at_s) == []
    assert run.policy.note_end(ExitCause.KERNEL_OOM, "a", run.at_s) == []
    assert steps(run.policy.note_end(ExitCause.KERNEL_OOM, "a", run.at_s)) == ["ask_user"]


def test_policy_swapping_worker_is_cancelled_and_then_stopped() -> None:
    run = Run()
    run.hold(0.2, worker())
    few = worker(swap_bytes=1 * MIB)
    assert steps(run.feed(few)) == ["close_admission", "drop_caches"]
    much = worker(swap_bytes=5 * MIB)
    actions = run.feed(much)
    assert steps(actions) == ["cancel_newest"]
    assert actions[0].cause is ExitCause.SWAPPING
    assert actions[0].worker_id == "w"
    killed = run.hold(0.6, much)
    assert killed[0].cause is ExitCause.SWAPPING
    assert "did not end" in killed[0].sentence
    assert "went to swap" in killed[0].sentence


def test_policy_no_answer_is_given_up_where_no_end_of_ours_would_help() -> None:
    run = Run()
    low = {"available": CRITICAL_LINE - 400 * MIB}
    actions = run.hold(5, worker(own_mib=100), **low)
    assert steps(actions) == ["close_admission", "drop_caches", "ask_user"]


def test_policy_victim_that_shrank_under_the_line_meanwhile_is_spared() -> None:
    run = Run()
    low = {"available": CRITICAL_LINE - 400 * MIB}
    assert run.feed(worker(own_mib=900), **low)[-1].step == "cancel_newest"
    actions = run.hold(1, worker(own_mib=100), **low)
    assert steps(actions) == ["ask_user"]


def test_policy_pages_that_were_swapped_long_ago_are_no_signal() -> None:
    run = Run()
    assert run.hold(6, worker(swap_bytes=100 * MIB)) == []


def test_policy_sleep_moves_deadlines() -> None:
    run = Run()
    low = {"available": CRITICAL_LINE - 1}
    run.feed(worker(), **low)
    assert "kill" not in steps(run.feed(worker(), after_s=30, **low))
    assert "kill" in steps(run.hold(0.6, worker(), **low))


def test_policy_sleep_without_pressure_changes_nothing() -> None:
    run = Run()
    run.hold(0.3, worker(own_mib=500))
    assert run.feed(worker(own_mib=1000), after_s=3600) == []
    assert run.policy.slope("w") == 0.0
    assert run.policy.slope("none") == 0.0


def test_policy_system_warnings_raise_the_level() -> None:
    run = Run()
    run.feed(worker(), is_warning=True)
    assert run.level == PressureLevel.ELEVATED
    run.feed(worker(), is_critical=True)
    assert run.level == PressureLevel.CRITICAL


def test_policy_gpu_over_its_cap_unloads_or_cancels_that_worker() -> None:
    run = Run()
    over = worker(gpu_bytes={"CUDA0": 9 * GIB}, gpu_cap_bytes={"CUDA0": 8 * GIB}, in_flight=0)
    actions = run.feed(over, worker("other", in_flight=0))
    assert [one.worker_id for one in actions if one.step == "unload_idle"] == ["w"]
    busy = replace(over, in_flight=2)
    run = Run()
    actions = run.feed(busy)
    assert actions[-1].step == "cancel_newest"
    assert actions[-1].cause is ExitCause.GPU_MEMORY
    within = worker(gpu_bytes={"CUDA0": 7 * GIB}, gpu_cap_bytes={"CUDA0": 8 * GIB})
    assert Run().feed(within) == []


@pytest.mark.parametrize(("free", "level"), [(100 * MIB, 2), (4 * GIB, 1)])
def test_policy_spilling_is_critical_only_on_a_full_card(free: int, level: int) -> None:
    run = Run()
    run.feed(worker(shared_gpu_bytes=100 * MIB, gpu_free_bytes=free))
    spilled = worker(shared_gpu_bytes=500 * MIB, gpu_free_bytes=free)
    run.feed(spilled)
    assert run.level == PressureLevel.ELEVATED
    run.feed(spilled)
    assert run.level == level


def test_policy_worker_without_a_plan_has_only_its_cap() -> None:
    unplanned = worker(own_mib=1400, planned_own_bytes=0)
    assert Run().feed(unplanned)[0].step == "close_admission"
    assert Run().feed(worker(own_mib=1300, planned_own_bytes=0)) == []
    low = Run().feed(unplanned, available=KILL_LINE - 100 * MIB)
    assert "kill" in steps(low)


def test_policy_growth_after_stillness_has_its_full_slope() -> None:
    run = Run()
    run.feed(worker(own_mib=1200))
    for _ in range(10):
        run.at_s += 0.05
        run.policy.note_still(run.at_s)
    run.feed(worker(own_mib=1210))
    assert run.policy.slope("w") == pytest.approx(200 * MIB, rel=0.01)
