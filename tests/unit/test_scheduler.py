"""The scheduler's decisions one by one; the numbers are those of its docstring."""

from dataclasses import dataclass, field

from app.core.router.scheduler import Place, Policy, Scheduler
from app.core.router.tickets import Admission, Closing, Refusal, RefusalKind, Ticket

GIB = 1 << 30
ONE = {"RAM": GIB}


@dataclass
class Recorder:
    log: list[tuple[str, str]] = field(default_factory=list)
    granted: list[int] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)

    def start_load(self, model_id: str) -> None:
        self.log.append(("load", model_id))

    def stop_load(self, model_id: str, reason: str) -> None:
        self.log.append(("stop_load", model_id))

    def unload(self, model_id: str, reason: str) -> None:
        self.log.append(("unload", model_id))

    def give_up(self, model_id: str, error: Exception) -> None:
        assert str(error)

    def grant(self, ticket: Ticket) -> None:
        self.granted.append(ticket.ticket_id)

    def refuse(self, ticket: Ticket, refusal: Refusal) -> None:
        self.refused[ticket.ticket_id] = refusal


def make(**policy: object) -> tuple[Scheduler, Recorder]:
    recorder = Recorder()
    return Scheduler(recorder, Policy(**policy)), recorder  # type: ignore[arg-type]


def ticket(number: int, model: str = "a", at: float = 0.0, **more: object) -> Ticket:
    return Ticket(number, model, enqueued_s=at, **more)  # type: ignore[arg-type]


def test_scheduler_eight_tickets_for_a_cold_model_join_one_load() -> None:
    scheduler, recorder = make()
    tickets = [ticket(n) for n in range(8)]
    for one in tickets:
        scheduler.submit(one, 0.0)
    assert recorder.log == [("load", "a")]
    scheduler.load_finished("a", 2, ONE, 1.0)
    assert recorder.granted == [0, 1]
    for one in tickets:
        scheduler.release(one, 2.0)
    assert recorder.granted == list(range(8))
    assert scheduler.in_flight == 0
    assert recorder.log == [("load", "a")]


def test_scheduler_queue_full_refuses_with_a_time_to_come_back() -> None:
    scheduler, recorder = make(max_queue_size=2)
    scheduler.submit(ticket(0), 0.0)
    scheduler.load_finished("a", 1, ONE, 0.0)
    for number in range(1, 5):
        scheduler.submit(ticket(number), 0.0)
    assert recorder.granted == [0]
    assert sorted(recorder.refused) == [3, 4]
    assert recorder.refused[3].kind is RefusalKind.OVERLOADED
    assert 1 <= recorder.refused[3].retry_after_s <= 60


def test_scheduler_no_queue_still_loads_a_cold_model() -> None:
    scheduler, recorder = make(max_queue_size=0)
    scheduler.submit(ticket(0), 0.0)
    scheduler.submit(ticket(1), 0.0)
    scheduler.load_finished("a", 1, ONE, 0.0)
    assert recorder.granted == [0]
    assert list(recorder.refused) == [1]


def test_scheduler_senior_and_short_requests_go_first_but_none_starves() -> None:
    scheduler, recorder = make()
    scheduler.submit(ticket(0), 0.0)
    scheduler.load_finished("a", 1, ONE, 0.0)
    scheduler.submit(ticket(1, at=0.0, size_tokens=32_000), 0.0)
    scheduler.submit(ticket(2, at=5.0, size_tokens=500), 5.0)
    scheduler.submit(ticket(3, at=6.0, priority=3), 6.0)
    scheduler.submit(ticket(4, at=300.0), 300.0)
    for number in (0, 3, 2, 1, 4):
        scheduler.release(ticket(number), 301.0)
    assert recorder.granted == [0, 3, 2, 1, 4]


def test_scheduler_client_gone_frees_its_place() -> None:
    scheduler, recorder = make(max_queue_size=1)
    scheduler.submit(ticket(0), 0.0)
    scheduler.load_finished("a", 1, ONE, 0.0)
    waiting = ticket(1)
    scheduler.submit(waiting, 0.0)
    scheduler.withdraw(waiting, 1.0)
    scheduler.submit(ticket(2), 1.0)
    assert not recorder.refused
    assert scheduler.queued == 1


def test_scheduler_overload_policies_reject_and_degrade() -> None:
    scheduler, recorder = make(overload="reject")
    scheduler.load_finished("a", 1, ONE, 0.0)
    scheduler.submit(ticket(0), 0.0)
    scheduler.submit(ticket(1), 0.0)
    assert list(recorder.refused) == [1]
    scheduler, recorder = make(overload="degrade")
    scheduler.load_finished("a", 1, ONE, 0.0)
    scheduler.submit(ticket(0), 0.0)
    scheduler.submit(ticket(1), 0.0)
    scheduler.submit(ticket(2, may_degrade=True), 0.0)
    assert list(recorder.refused) == [2]
    assert scheduler.queued == 1


def test_scheduler_waited_too_long_is_refused() -> None:
    scheduler, recorder = make()
    scheduler.submit(ticket(0, deadline_s=5.0), 0.0)
    scheduler.tick(6.0)
    assert recorder.refused[0].kind is RefusalKind.WAITED_TOO_LONG


def test_scheduler_closed_door_refuses_new_and_holds_the_waiting() -> None:
    scheduler, recorder = make()
    scheduler.load_finished("a", 1, ONE, 0.0)
    scheduler.submit(ticket(0), 0.0)
    scheduler.submit(ticket(1), 0.0)
    closed = Admission(takes_new=False, grants=False, loads=False, sentence="low memory")
    scheduler.set_admission(closed, 1.0)
    scheduler.release(ticket(0), 2.0)
    scheduler.submit(ticket(2), 2.0)
    assert recorder.granted == [0]
    assert recorder.refused[2].sentence == "low memory"
    scheduler.set_admission(Admission(), 3.0)
    assert recorder.granted == [0, 1]
    scheduler.submit(ticket(3), 3.0)
    scheduler.set_admission(Admission(takes_new=False, empties_queue=True), 4.0)
    assert recorder.refused[3].kind is RefusalKind.CLOSED


PRESSED = Admission(False, False, False, sentence="1 GiB is left", patience_s=15.0)


def test_scheduler_door_that_stays_shut_sends_the_waiting_away_with_its_words() -> None:
    scheduler, recorder = make()
    scheduler.submit(ticket(0), 0.0)
    scheduler.set_admission(PRESSED, 10.0)
    scheduler.load_finished("a", 1, ONE, 20.0)
    scheduler.set_admission(PRESSED, 22.0)  # another level; the door is no less shut
    scheduler.tick(24.0)
    assert (recorder.granted, recorder.refused) == ([], {})
    scheduler.tick(25.0)
    assert recorder.refused[0] == Refusal(RefusalKind.CLOSED, "1 GiB is left", 10)
    assert recorder.log == [("load", "a")]
    scheduler.set_admission(Admission(), 26.0)
    scheduler.submit(ticket(1), 27.0)
    assert recorder.granted == [1]


def test_scheduler_load_that_the_shut_door_makes_useless_is_stopped_unless_the_user_wants_it() -> (
    None
):
    for is_wanted in (False, True):
        scheduler, recorder = make()
        scheduler.submit(ticket(0), 0.0)
        if is_wanted:
            scheduler.want("a", 1.0)
        scheduler.set_admission(PRESSED, 10.0)
        scheduler.tick(25.0)
        assert list(recorder.refused) == [0]
        assert (("stop_load", "a") in recorder.log) is not is_wanted
        scheduler.load_failed("a", RuntimeError("stopped"), 26.0)
        scheduler.set_admission(Admission(), 30.0)
        assert recorder.log.count(("load", "a")) == 1


def test_scheduler_closed_model_is_closed_alone() -> None:
    scheduler, recorder = make()
    scheduler.load_finished("a", 1, ONE, 0.0)
    scheduler.load_finished("b", 1, ONE, 0.0)
    scheduler.submit(ticket(0, "a"), 0.0)
    scheduler.submit(ticket(1, "a"), 0.0)
    closing = Closing("a is near its cap", 7, since_s=1.0, patience_s=5.0)
    shut = Admission(closed_models={"a": closing})
    scheduler.set_admission(shut, 1.0)
    scheduler.release(ticket(0, "a"), 2.0)
    scheduler.submit(ticket(2, "a"), 2.0)
    scheduler.submit(ticket(3, "b"), 2.0)
    assert recorder.granted == [0, 3]
    assert recorder.refused == {2: Refusal(RefusalKind.CLOSED, "a is near its cap", 7)}
    scheduler.set_admission(Admission(), 3.0)
    assert recorder.granted == [0, 3, 1]
    scheduler.submit(ticket(4, "a"), 3.0)
    scheduler.set_admission(shut, 4.0)
    scheduler.tick(6.0)
    assert recorder.refused[4].sentence == "a is near its cap"


def test_scheduler_model_on_pause_names_the_time_that_is_left() -> None:
    scheduler, recorder = make()
    closing = Closing("no", 60, since_s=0.0, until_s=60.0)
    scheduler.set_admission(Admission(closed_models={"a": closing}), 0.0)
    for number, at in enumerate([0.0, 42.5, 61.0]):
        scheduler.submit(ticket(number, at=at), at)
    assert [refusal.retry_after_s for refusal in recorder.refused.values()] == [60, 18, 1]


def test_scheduler_closed_model_is_not_loaded_and_another_is() -> None:
    scheduler, recorder = make()
    scheduler.set_admission(Admission(False, False, False), 0.0)
    scheduler.want("a", 0.0)
    scheduler.want("b", 0.0)
    scheduler.set_admission(Admission(closed_models={"a": Closing("no", 7, 0.0)}), 1.0)
    assert recorder.log == [("load", "b")]
    scheduler.load_finished("b", 1, ONE, 2.0)
    scheduler.set_admission(Admission(), 3.0)
    assert recorder.log == [("load", "b"), ("load", "a")]


def test_scheduler_load_that_lacks_memory_evicts_by_bytes_never_the_busy() -> None:
    scheduler, recorder = make()
    for number, (model, size) in enumerate([("big", 4), ("small", 1), ("busy", 8)]):
        scheduler.load_finished(model, 1, {"RAM": size * GIB}, float(number))
    scheduler.submit(ticket(0, "busy"), 3.0)
    scheduler.submit(ticket(1, "new", at=4.0), 4.0)
    scheduler.load_failed("new", RuntimeError("no room"), 5.0, lacking_bytes=3 * GIB)
    assert recorder.log == [("load", "new"), ("unload", "big")]
    scheduler.unloaded("big", 6.0)
    assert recorder.log[-1] == ("load", "new")
    scheduler.load_finished("new", 1, {"RAM": 3 * GIB}, 7.0)
    assert recorder.granted == [0, 1]


def test_scheduler_swap_drains_the_busy_model_and_then_loads() -> None:
    scheduler, recorder = make(swap_patience_s=10.0)
    scheduler.load_finished("a", 1, {"RAM": 4 * GIB}, 0.0)
    held, queued = ticket(0, "a"), ticket(1, "a")
    scheduler.submit(held, 0.0)
    scheduler.submit(queued, 0.0)
    scheduler.submit(ticket(2, "b", at=1.0), 1.0)
    scheduler.load_failed("b", RuntimeError("no room"), 2.0, lacking_bytes=GIB)
    assert scheduler.view("a").place is Place.READY  # its own queue comes first for a while
    scheduler.tick(12.0)
    assert scheduler.view("a").place is Place.DRAINING
    assert ("unload", "a") not in recorder.log
    scheduler.release(held, 13.0)
    assert recorder.log[-1] == ("unload", "a")
    scheduler.unloaded("a", 14.0)
    assert recorder.log[-1] == ("load", "b")
    scheduler.load_finished("b", 1, {"RAM": 4 * GIB}, 15.0)
    assert recorder.granted == [0, 2]
    assert scheduler.view("a").queued == 1


def test_scheduler_drain_for_a_client_that_left_is_called_off() -> None:
    scheduler, _ = make()
    scheduler.load_finished("a", 1, {"RAM": 4 * GIB}, 0.0)
    scheduler.submit(ticket(0, "a"), 0.0)
    leaving = ticket(1, "b", at=1.0)
    scheduler.submit(leaving, 1.0)
    scheduler.load_failed("b", RuntimeError("no room"), 2.0, lacking_bytes=GIB)
    assert scheduler.view("a").place is Place.DRAINING
    scheduler.withdraw(leaving, 3.0)
    assert scheduler.view("a").place is Place.READY


def test_scheduler_pinned_model_is_kept_and_the_load_is_refused_with_its_reason() -> None:
    scheduler, recorder = make(pinned=frozenset({"a"}))
    scheduler.load_finished("a", 1, {"RAM": 4 * GIB}, 0.0)
    scheduler.submit(ticket(0, "b"), 0.0)
    error = RuntimeError("no room")
    scheduler.load_failed("b", error, 1.0, lacking_bytes=GIB)
    assert recorder.refused[0].error is error
    scheduler.tick(10_000.0)
    assert ("unload", "a") not in recorder.log


def test_scheduler_idle_model_is_unloaded_and_a_used_one_is_not() -> None:
    scheduler, recorder = make(idle_timeout_s=60.0)
    scheduler.load_finished("a", 1, ONE, 0.0)
    scheduler.load_finished("b", 1, ONE, 0.0)
    scheduler.submit(ticket(0, "b"), 1.0)
    scheduler.tick(100.0)
    assert recorder.log == [("unload", "a")]


def test_scheduler_worker_lost_retires_its_requests_and_loads_again_for_the_waiting() -> None:
    scheduler, recorder = make()
    scheduler.load_finished("a", 1, ONE, 0.0)
    scheduler.submit(ticket(0), 0.0)
    scheduler.submit(ticket(1), 0.0)
    scheduler.unloaded("a", 1.0)
    assert recorder.log == [("load", "a")]
    scheduler.load_finished("a", 1, ONE, 2.0)
    assert recorder.granted == [0, 1]  # the dead worker's request holds no slot of the new one
    assert scheduler.in_flight == 2
    scheduler.release(ticket(0), 3.0)
    scheduler.release(ticket(1), 3.0)
    assert scheduler.in_flight == 0


def test_scheduler_shared_kv_cells_hold_back_what_does_not_fit_beside() -> None:
    scheduler, recorder = make()
    scheduler.load_finished("a", 4, ONE, 0.0, kv_tokens=8192)
    first = ticket(0, size_tokens=6000)
    scheduler.submit(first, 0.0)
    scheduler.submit(ticket(1, size_tokens=6000), 0.0)
    assert recorder.granted == [0]
    scheduler.release(first, 1.0)
    assert recorder.granted == [0, 1]


def test_scheduler_user_unload_drains_first_and_want_loads() -> None:
    scheduler, recorder = make()
    scheduler.want("a", 0.0)
    assert recorder.log == [("load", "a")]
    scheduler.load_finished("a", 1, ONE, 1.0)
    scheduler.submit(ticket(0), 1.0)
    scheduler.drain("a", 2.0)
    assert recorder.log == [("load", "a")]
    scheduler.release(ticket(0), 3.0)
    assert recorder.log == [("load", "a"), ("unload", "a")]
