from hypothesis import given
from hypothesis import strategies as st

from app.core.router.breaker import Breaker, BreakerPolicy, BreakerState

POLICY = BreakerPolicy(failures=3, first_pause_s=2.0, longest_pause_s=10.0)


def broken(now: float = 0.0) -> Breaker:
    breaker = Breaker(POLICY)
    for _ in range(3):
        assert breaker.can_pass(now)
        breaker.passes(now)
        breaker.failed(now)
    return breaker


def test_breaker_opens_after_a_row_of_failures_and_only_then() -> None:
    breaker = Breaker(POLICY)
    breaker.failed(0.0)
    breaker.failed(0.0)
    breaker.succeeded()
    breaker.failed(0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED
    assert broken().state(0.0) is BreakerState.OPEN
    assert not broken().can_pass(1.9)
    assert broken().opens_in_s(0.5) == 1.5


def test_breaker_half_open_lets_one_probe_pass_that_decides() -> None:
    breaker = broken()
    assert breaker.state(2.0) is BreakerState.HALF_OPEN
    breaker.passes(2.0)
    assert not breaker.can_pass(2.0)
    breaker.succeeded()
    assert breaker.state(2.0) is BreakerState.CLOSED


def test_breaker_pause_doubles_at_each_failed_probe_up_to_its_bound() -> None:
    breaker = broken()
    now = 0.0
    pauses = []
    for _ in range(5):
        pauses.append(breaker.opens_in_s(now))
        now += breaker.opens_in_s(now)
        breaker.passes(now)
        breaker.failed(now)
    assert pauses == [2.0, 4.0, 8.0, 10.0, 10.0]


def test_breaker_dropped_probe_lets_the_next_one_pass() -> None:
    breaker = broken()
    breaker.passes(2.0)
    breaker.dropped()
    assert breaker.can_pass(2.0)


@given(st.lists(st.sampled_from(["ok", "fail", "drop", "wait"]), max_size=60))
def test_breaker_always_comes_to_let_a_request_pass(steps: list[str]) -> None:
    breaker = Breaker(POLICY)
    now = 0.0
    for step in steps:
        if step == "wait":
            now += 3.0
        elif breaker.can_pass(now):
            breaker.passes(now)
            if step == "ok":
                breaker.succeeded()
                assert breaker.state(now) is BreakerState.CLOSED
            elif step == "fail":
                breaker.failed(now)
            else:
                breaker.dropped()
    assert breaker.can_pass(now + POLICY.longest_pause_s)
