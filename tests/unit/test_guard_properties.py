"""What must hold of the guard's decisions whatever the readings are."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.lifecycle import ExitCause
from app.guard.cadence import period_s
from app.guard.lines import GIB, MIB, Lines
from app.guard.policy import Policy
from app.guard.readings import Action, Reading, WorkerReading

TOTAL = 16 * GIB
sizes = st.integers(0, 4 * GIB)
names = st.sampled_from(["a", "b", "c"])


@st.composite
def workers(draw: st.DrawFn) -> WorkerReading:
    planned = draw(st.integers(0, 2 * GIB))
    return WorkerReading(
        worker_id=draw(names),
        model_id="m",
        own_bytes=draw(sizes),
        mapped_bytes=draw(sizes),
        swap_bytes=draw(st.sampled_from([0, 0, MIB, 64 * MIB])),
        planned_own_bytes=planned,
        cap_own_bytes=planned + max(512 * MIB, planned // 10),
        planned_mapped_bytes=draw(sizes),
        refault_bytes=draw(st.sampled_from([-1, 0, 4 * GIB])),
        in_flight=draw(st.integers(-1, 3)),
        is_ending=draw(st.booleans()),
    )


@st.composite
def readings(draw: st.DrawFn) -> list[Reading]:
    at_s = 100.0
    made: list[Reading] = []
    for _ in range(draw(st.integers(1, 12))):
        at_s += draw(st.sampled_from([0.02, 0.05, 0.25, 1.0, 100.0]))
        found = {one.worker_id: one for one in draw(st.lists(workers(), max_size=3))}
        stalled = at_s * draw(st.sampled_from([0.0, 0.5]))
        made.append(
            Reading(
                at_s=at_s,
                period_s=0.05,
                available_bytes=draw(st.integers(0, TOTAL)),
                total_bytes=TOTAL,
                workers=tuple(found.values()),
                psi_some_s=stalled,
                psi_full_s=stalled / 2,
                refault_bytes=draw(sizes),
                is_slow=draw(st.booleans()),
            )
        )
    return made


def kills(actions: list[Action]) -> set[str]:
    return {action.worker_id for action in actions if action.step == "kill"}


@given(readings())
@settings(max_examples=60, deadline=None)
def test_policy_names_only_workers_of_ours_and_never_one_that_is_ending(
    series: list[Reading],
) -> None:
    policy = Policy(Lines())
    for reading in series:
        alive = {one.worker_id for one in reading.workers if not one.is_ending}
        actions = policy.step(reading)
        known = {one.worker_id for one in reading.workers} | {""}
        assert kills(actions) <= alive
        assert {action.worker_id for action in actions} <= known
        for action in actions:
            assert action.sentence
            assert action.step == "admit" or action.cause is not None


@given(st.lists(st.tuples(st.integers(0, GIB), st.floats(0.02, 100)), max_size=30), st.booleans())
@settings(max_examples=60, deadline=None)
def test_policy_never_kills_a_worker_within_its_plan_while_the_machine_is_fine(
    series: list[tuple[int, float]], loading: bool
) -> None:
    policy = Policy(Lines())
    at_s = 0.0
    for own_bytes, after_s in series:
        at_s += after_s
        worker = WorkerReading(
            "w",
            "m",
            own_bytes,
            planned_own_bytes=GIB,
            cap_own_bytes=GIB + 512 * MIB,
            is_loading=loading,
            in_flight=1,
        )
        reading = Reading(
            at_s, 0.05, TOTAL // 2, TOTAL, (worker,), psi_some_s=at_s, psi_full_s=at_s
        )
        assert policy.step(reading) == []


@given(readings(), st.integers(0, 2 * GIB), st.integers(0, TOTAL))
@settings(max_examples=60, deadline=None)
def test_policy_is_monotone_in_memory(series: list[Reading], more: int, less: int) -> None:
    """More taken and less available never make the same history's answer milder."""
    mild, harsh = Policy(Lines()), Policy(Lines())
    for reading in series[:-1]:
        mild.step(reading)
        harsh.step(reading)
    last = series[-1]
    heavier = replace(
        last,
        available_bytes=max(last.available_bytes - less, 0),
        workers=tuple(replace(one, own_bytes=one.own_bytes + more) for one in last.workers),
    )
    mild_actions, harsh_actions = mild.step(last), harsh.step(heavier)
    over_cap = {
        action.worker_id
        for action in mild_actions
        if action.step == "kill" and action.cause is ExitCause.CAP_EXCEEDED
    }
    assert over_cap <= kills(harsh_actions)
    assert min(mild.level, 3) <= min(harsh.level, 3)


@given(readings())
@settings(max_examples=50, deadline=None)
def test_policy_machine_kill_always_helps_or_hits_who_is_over_its_plan(
    series: list[Reading],
) -> None:
    policy = Policy(Lines())
    for reading in series:
        by_id = {one.worker_id: one for one in reading.workers}
        for action in policy.step(reading):
            if action.step != "kill" or action.cause is not ExitCause.MACHINE_MEMORY_LOW:
                continue
            victim = by_id[action.worker_id]
            helps = reading.available_bytes + victim.own_bytes >= action.line_bytes
            is_over = 0 < victim.planned_own_bytes < victim.own_bytes
            assert helps or is_over


@given(readings(), st.floats(0, 8.0 * GIB))
@settings(max_examples=30, deadline=None)
def test_cadence_is_one_of_the_four_periods(series: list[Reading], slope: float) -> None:
    lines = Lines()
    for reading in series:
        assert period_s(lines, reading, slope) in {
            lines.period_none_s,
            lines.period_idle_s,
            lines.period_busy_s,
            lines.period_close_s,
        }
