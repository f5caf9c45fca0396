"""The scheduler under any order of events: no ticket is lost, no busy worker is evicted."""

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from app.core.router.scheduler import Place, Policy, Scheduler
from app.core.router.tickets import Admission, Closing, Refusal, Ticket

MODELS = ("a", "b", "c")
SIZES = {"a": 3, "b": 4, "c": 5}
ROOM = 8  # two of the models fit, never all three


class Machine(RuleBasedStateMachine):
    """A world of workers with 8 bytes of memory; every effect is checked as it comes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.number = 0
        self.waiting: dict[int, Ticket] = {}
        self.held: dict[int, Ticket] = {}
        self.settled = 0
        self.loading: set[str] = set()
        self.unloading: set[str] = set()
        self.loaded: dict[str, int] = {}

    @initialize(
        size=st.integers(0, 6),
        overload=st.sampled_from(["queue", "reject", "degrade"]),
        pinned=st.sampled_from([frozenset[str](), frozenset({"a"})]),
    )
    def start(self, size: int, overload: str, pinned: frozenset[str]) -> None:
        policy = Policy(size, overload, 50.0, 5.0, pinned)  # type: ignore[arg-type]
        self.pinned = pinned
        self.scheduler = Scheduler(self, policy)

    # Effects.

    def start_load(self, model_id: str) -> None:
        assert not self.loading, "one load at a time"
        assert model_id not in self.loaded
        assert model_id not in self.unloading
        self.loading.add(model_id)

    def stop_load(self, model_id: str, reason: str) -> None:
        assert model_id in self.loading
        assert not [one for one in self.waiting.values() if one.model_id == model_id]

    def unload(self, model_id: str, reason: str) -> None:
        assert model_id in self.loaded
        mine = [one for one in self.held.values() if one.model_id == model_id]
        assert not mine, "a busy worker is never evicted"
        assert reason.startswith("unloaded by") or model_id not in self.pinned
        del self.loaded[model_id]
        self.unloading.add(model_id)

    def give_up(self, model_id: str, error: Exception) -> None:
        assert str(error)

    def grant(self, ticket: Ticket) -> None:
        del self.waiting[ticket.ticket_id]
        self.held[ticket.ticket_id] = ticket
        assert ticket.model_id in self.loaded

    def refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        del self.waiting[ticket.ticket_id]
        self.settled += 1
        assert 1 <= refusal.retry_after_s <= 60

    # What may happen.

    @rule(
        model=st.sampled_from(MODELS),
        priority=st.integers(-2, 2),
        size=st.integers(0, 9000),
        degrade=st.booleans(),
    )
    def submit(self, model: str, priority: int, size: int, degrade: bool) -> None:
        self.number += 1
        ticket = Ticket(self.number, model, priority, size, self.now, self.now + 100, None, degrade)
        self.waiting[self.number] = ticket
        self.scheduler.submit(ticket, self.now)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        ticket = self.waiting.pop(number)
        self.settled += 1
        self.scheduler.withdraw(ticket, self.now)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        ticket = self.held.pop(number)
        self.settled += 1
        self.scheduler.release(ticket, self.now)

    @precondition(lambda self: self.loading)
    @rule(breaks=st.booleans())
    def load_ends(self, breaks: bool) -> None:
        model = self.loading.pop()
        lacking = sum(SIZES[other] for other in self.loaded) + SIZES[model] - ROOM
        if breaks:
            self.scheduler.load_failed(model, RuntimeError("broken"), self.now)
        elif lacking > 0:
            self.scheduler.load_failed(model, RuntimeError("no room"), self.now, lacking)
        else:
            self.loaded[model] = 2
            self.scheduler.load_finished(model, 2, {"RAM": SIZES[model]}, self.now)

    @precondition(lambda self: self.unloading)
    @rule()
    def unload_ends(self) -> None:
        self.scheduler.unloaded(self.unloading.pop(), self.now)

    @precondition(lambda self: self.loaded)
    @rule(data=st.data(), is_told_first=st.booleans())
    def worker_dies(self, data: st.DataObject, is_told_first: bool) -> None:
        model = data.draw(st.sampled_from(sorted(self.loaded)))
        del self.loaded[model]
        if is_told_first:
            self.scheduler.ending(model, self.now)
        else:
            self.scheduler.unloaded(model, self.now)
        for ticket in [one for one in self.held.values() if one.model_id == model]:
            del self.held[ticket.ticket_id]
            self.settled += 1
            self.scheduler.release(ticket, self.now)
        if is_told_first:
            self.scheduler.unloaded(model, self.now)

    @rule(model=st.sampled_from(MODELS), loads=st.booleans())
    def user_wish(self, model: str, loads: bool) -> None:
        (self.scheduler.want if loads else self.scheduler.drain)(model, self.now)

    @rule(
        takes=st.booleans(),
        grants=st.booleans(),
        loads=st.booleans(),
        empties=st.booleans(),
        closed=st.sets(st.sampled_from(MODELS)),
    )
    def gate(self, takes: bool, grants: bool, loads: bool, empties: bool, closed: set[str]) -> None:
        closings = {model: Closing("near its cap", 10, self.now, 5.0) for model in closed}
        admission = Admission(takes, grants, loads, empties, "shut", 10, 15.0, closings)
        self.scheduler.set_admission(admission, self.now)

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.scheduler.tick(self.now)

    # What always holds.

    @invariant()
    def no_ticket_is_lost(self) -> None:
        assert self.number == self.settled + len(self.waiting) + len(self.held)
        if self.number:
            assert self.scheduler.in_flight == len(self.held)
            assert self.scheduler.queued == len(self.waiting)

    @invariant()
    def slots_hold(self) -> None:
        for model in self.loaded:
            mine = [one for one in self.held.values() if one.model_id == model]
            assert len(mine) <= 2

    def teardown(self) -> None:
        """Left alone, the world comes to rest: everything is answered, nothing is in flight."""
        if not self.number:
            return
        self.scheduler.set_admission(Admission(), self.now)
        for _ in range(self.number * 20 + 100):
            if self.loading:
                self.load_ends(False)
            elif self.unloading:
                self.unload_ends()
            elif self.held:
                ticket = self.held.pop(min(self.held))
                self.settled += 1
                self.scheduler.release(ticket, self.now)
            elif self.waiting:
                self.now += 6.0
                self.scheduler.tick(self.now)
            else:
                break
        assert not self.waiting
        assert self.scheduler.in_flight == 0
        for model in MODELS:
            assert self.scheduler.view(model).place is not Place.DRAINING


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
