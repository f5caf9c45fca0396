"""The supervisor with a guard that has no caps and an engine that is none."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from app.core.backends.supervisor import Supervisor
from app.core.errors import (
    AdmissionClosed,
    CoolheadError,
    DoesNotFit,
    EngineMissing,
    ModelUnknown,
    WorkerStartFailed,
    WorkerStopped,
)
from app.core.events import (
    Event,
    EventBus,
    GuardChanged,
    LoadProgressed,
    Notice,
    WorkerExited,
    WorkerStateChanged,
)
from app.core.lifecycle import ExitCause, WorkerState
from app.core.settings import Settings
from tests.fakes.fake_backends import (
    MIB,
    FakeBackend,
    FakeGuard,
    FakeLibrary,
    FakePlanner,
    ask,
    until,
)


class Bench:
    """A supervisor with everything around it; the clock can be pushed forward."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.bus = EventBus()
        self.bus.subscribe(self.events.append)
        self.backend = FakeBackend()
        self.planner = FakePlanner()
        self.settings = Settings()
        self.ahead_s = 0.0
        FakeGuard.made.clear()
        self.supervisor = Supervisor(
            guard=FakeGuard,
            library=FakeLibrary(),
            planner=self.planner,
            backends=[self.backend],
            events=self.bus,
            settings=lambda: self.settings,
            clock=lambda: time.monotonic() + self.ahead_s,
        )

    @property
    def guard(self) -> FakeGuard:
        return FakeGuard.made[-1]

    def states(self, model_id: str = "m") -> list[WorkerState]:
        return [
            e.state
            for e in self.events
            if isinstance(e, WorkerStateChanged) and e.model_id == model_id
        ]

    def state(self, model_id: str = "m") -> WorkerState:
        view = self.supervisor.worker(model_id)
        return view.state if view else WorkerState.UNLOADED


def run(story: Callable[[Bench], Awaitable[None]]) -> None:
    """Tells a story on a bench, and clears it away."""

    async def told() -> None:
        bench = Bench()
        await bench.supervisor.start()
        try:
            async with asyncio.timeout(60):
                await story(bench)
        finally:
            await bench.supervisor.stop_all(ExitCause.STOPPED_BY_USER)

    asyncio.run(told())


def test_ensure_ready_cold_model_loads_and_answers() -> None:
    async def story(bench: Bench) -> None:
        ready = await bench.supervisor.ensure_ready("m")
        assert (ready.context_tokens, ready.slots, ready.generation) == (4096, 2, 1)
        status, body = await ask(ready.port, "/v1/chat/completions", {"messages": []})
        assert status == 200
        assert "cool" in body
        assert bench.states() == [WorkerState.STARTING, WorkerState.READY]
        view = bench.supervisor.worker("m")
        assert view is not None
        assert view.load_fraction == 1.0
        assert view.planned_bytes["RAM"] == 150 * MIB
        await until(lambda: bool(bench.planner.records))
        assert bench.planner.records[0]["RAM"] > MIB
        caps = bench.guard.launches[0].caps
        assert (caps.own_bytes, caps.planned_own_bytes) == (612 * MIB, 100 * MIB)

    run(story)


def test_ensure_ready_eight_at_once_share_one_load() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["load_s"] = "0.2"
        found = await asyncio.gather(*(bench.supervisor.ensure_ready("m") for _ in range(8)))
        assert len({ready.worker_id for ready in found}) == 1
        assert len(bench.guard.launches) == 1

    run(story)


def test_ensure_ready_caller_leaves_and_the_load_goes_on() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["load_s"] = "0.3"
        impatient = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await until(lambda: bench.state() is WorkerState.STARTING)
        impatient.cancel()
        ready = await bench.supervisor.ensure_ready("m")
        assert ready.generation == 1

    run(story)


def test_ensure_ready_unknown_model_is_refused_and_leaves_no_load() -> None:
    async def story(bench: Bench) -> None:
        with pytest.raises(ModelUnknown):
            await bench.supervisor.ensure_ready("no")
        assert bench.guard.launches == []

    run(story)


def test_ensure_ready_model_that_does_not_fit_is_refused_with_numbers() -> None:
    async def story(bench: Bench) -> None:
        bench.planner.fits = False
        with pytest.raises(DoesNotFit) as caught:
            await bench.supervisor.ensure_ready("m")
        assert caught.value.details["lacking_bytes"] == 30 * MIB
        assert "Take less context." in caught.value.message
        assert bench.guard.launches == []
        bench.settings = bench.settings.replace({"memory.force_load": True})
        await bench.supervisor.ensure_ready("m")

    run(story)


def test_ensure_ready_without_an_engine_says_so() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.runs = False
        with pytest.raises(EngineMissing):
            await bench.supervisor.ensure_ready("m")

    run(story)


def test_load_engine_fails_names_its_last_lines_and_pauses_after_three() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["fail"] = "tensor blk.0 is missing"
        for _ in range(3):
            with pytest.raises(WorkerStartFailed, match=r"tensor blk\.0 is missing") as caught:
                await bench.supervisor.ensure_ready("m")
            assert caught.value.details["log"] == ["error: tensor blk.0 is missing"]
        assert bench.state() is WorkerState.FAILED
        launches = len(bench.guard.launches)
        with pytest.raises(WorkerStopped, match="3 times in a row"):
            await bench.supervisor.ensure_ready("m")
        assert len(bench.guard.launches) == launches

    run(story)


def test_load_engine_without_progress_is_given_up_and_killed() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["load_s"] = "600"
        load = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await until(lambda: bench.state() is WorkerState.STARTING)
        bench.ahead_s += 700
        with pytest.raises(WorkerStartFailed, match="no progress"):
            await load
        assert bench.state() is WorkerState.FAILED
        assert bench.guard.processes["m:1"].poll() is not None

    run(story)


def test_load_samples_become_progress_events() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["load_s"] = "0.3"
        load = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await until(lambda: bool(bench.guard.launches))
        bench.guard.sample("m:1", 75 * MIB)
        view = bench.supervisor.worker("m")
        assert view is not None
        assert view.load_fraction == 0.5
        await load
        progress = [e for e in bench.events if isinstance(e, LoadProgressed)]
        assert (progress[0].resident_bytes, progress[0].planned_bytes) == (75 * MIB, 150 * MIB)

    run(story)


def test_load_stopped_by_the_user_ends_it_for_all_who_wait() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options |= {"load_s": "600", "ignore_sigterm": "1"}
        loads = [asyncio.create_task(bench.supervisor.ensure_ready("m")) for _ in range(3)]
        await until(lambda: bench.state() is WorkerState.STARTING and bool(bench.guard.processes))
        await bench.supervisor.unload("m", ExitCause.STOPPED_BY_USER, "You stopped it.")
        results = await asyncio.gather(*loads, return_exceptions=True)
        assert all(isinstance(r, WorkerStopped) and "You stopped it." in str(r) for r in results)
        assert bench.state() is WorkerState.UNLOADED

    run(story)


def test_worker_crash_in_use_tells_the_cause_and_the_next_one_starts() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["crash_after"] = "2"
        ready = await bench.supervisor.ensure_ready("m")
        lease = bench.supervisor.lease("m")
        why = bench.supervisor.worker_exit(ready.worker_id)
        await ask(ready.port, "/v1/completions", {"prompt": "x"})
        exited = await asyncio.wait_for(why, 20)
        assert exited.cause is ExitCause.CRASHED
        assert "SIGSEGV" in exited.sentence
        late = await bench.supervisor.worker_exit(ready.worker_id)
        assert late.cause is ExitCause.CRASHED
        lease.release()
        with pytest.raises(WorkerStopped):
            bench.supervisor.lease("m")
        bench.backend.options.clear()
        again = await bench.supervisor.ensure_ready("m")
        assert again.generation == 2
        assert any(
            isinstance(e, WorkerExited) and e.cause is ExitCause.CRASHED for e in bench.events
        )

    run(story)


def test_worker_killed_for_memory_restarts_smaller_after_the_cool_down() -> None:
    async def story(bench: Bench) -> None:
        ready = await bench.supervisor.ensure_ready("m")
        bench.guard.kill_for(ready.worker_id, ExitCause.CAP_EXCEEDED, "It took 700 of 612 MiB.")
        await until(lambda: bench.state() is WorkerState.FAILED)
        pause = bench.supervisor.cool_down("m")
        assert pause is not None
        assert "700 of 612 MiB" in pause.sentence
        again = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await asyncio.sleep(0.05)
        assert len(bench.guard.launches) == 1
        bench.ahead_s += 11
        assert (await again).generation == 2
        assert bench.planner.steps == [0, 1]

    run(story)


def test_worker_killed_three_times_waits_for_the_user_and_says_so_once() -> None:
    async def story(bench: Bench) -> None:
        for _ in range(3):
            ready = await bench.supervisor.ensure_ready("m")
            bench.guard.kill_for(ready.worker_id, ExitCause.SWAPPING, "It swapped.")
            await until(lambda: bench.state() is WorkerState.FAILED)
            bench.ahead_s += 20
        with pytest.raises(WorkerStopped) as caught:
            await bench.supervisor.ensure_ready("m")
        assert caught.value.details["needs_user"] is True
        assert len([e for e in bench.events if isinstance(e, Notice)]) == 1
        bench.supervisor.forgive("m")
        await bench.supervisor.ensure_ready("m")
        assert bench.planner.steps == [0, 1, 2, 0]

    run(story)


def test_guard_lost_fails_its_workers_and_a_new_one_serves() -> None:
    async def story(bench: Bench) -> None:
        ready = await bench.supervisor.ensure_ready("m")
        first = bench.guard
        first.lose("killed")
        exited = await bench.supervisor.worker_exit(ready.worker_id)
        assert exited.cause is ExitCause.GUARD_LOST
        assert bench.state() is WorkerState.FAILED
        again = await bench.supervisor.ensure_ready("m")
        assert again.generation == 2
        assert bench.guard is not first
        changes = [e.is_running for e in bench.events if isinstance(e, GuardChanged)]
        assert changes == [True, False, True]
        assert bench.supervisor.cool_down("m") is None

    run(story)


def test_guard_lost_during_a_load_stops_it_with_the_reason() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["load_s"] = "600"
        load = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await until(lambda: bool(bench.guard.processes))
        bench.guard.lose("killed")
        with pytest.raises(CoolheadError, match="guard was lost"):
            await load

    run(story)


def test_drain_waits_for_leases_and_a_new_request_loads_anew() -> None:
    async def story(bench: Bench) -> None:
        await bench.supervisor.ensure_ready("m")
        lease = bench.supervisor.lease("m")
        assert bench.guard.activities[-1].in_flight == 1
        draining = asyncio.create_task(bench.supervisor.drain("m"))
        await until(lambda: bench.state() is WorkerState.DRAINING)
        with pytest.raises(WorkerStopped):
            bench.supervisor.lease("m")
        assert not draining.done()
        lease.release()
        lease.release()
        assert await draining
        late = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await bench.supervisor.unload("m", ExitCause.UNLOADED)
        assert (await late).generation == 2

    run(story)


def test_guard_hears_at_once_of_work_and_seldom_of_the_rest() -> None:
    async def story(bench: Bench) -> None:
        await bench.supervisor.ensure_ready("m")
        told = bench.guard.activities
        before = len(told)
        for _ in range(100):
            with bench.supervisor.lease("m"):
                assert told[-1].in_flight == 1
        assert len(told) == before + 1
        await until(lambda: told[-1].in_flight == 0)
        assert len(told) == before + 2
        with bench.supervisor.lease("m"):
            assert told[-1].in_flight == 1

    run(story)


def test_drain_past_its_deadline_says_so() -> None:
    async def story(bench: Bench) -> None:
        await bench.supervisor.ensure_ready("m")
        with bench.supervisor.lease("m"):
            assert not await bench.supervisor.drain("m", 0.05)

    run(story)


def test_unload_idle_takes_the_least_recently_used_and_never_a_busy_one() -> None:
    async def story(bench: Bench) -> None:
        for model_id in ("m", "n", "o"):
            await bench.supervisor.ensure_ready(model_id)
            bench.ahead_s += 1
        assert bench.planner.live[2].mapped_bytes == 100 * MIB
        bench.supervisor.lease("n").release()
        bench.ahead_s += 1
        busy = bench.supervisor.lease("m")
        assert [view.model_id for view in bench.supervisor.idle()] == ["o", "n"]
        freed = await bench.supervisor.unload_idle(120 * MIB, ExitCause.UNLOADED)
        assert freed == 150 * MIB
        assert bench.state("o") is WorkerState.UNLOADED
        await bench.supervisor.unload_idle(0, ExitCause.UNLOADED)
        assert (bench.state("m"), bench.state("n")) == (WorkerState.READY, WorkerState.UNLOADED)
        busy.release()

    run(story)


def test_unload_memory_is_seen_back_before_the_next_load() -> None:
    async def story(bench: Bench) -> None:
        ready = await bench.supervisor.ensure_ready("m")
        bench.guard.sample(ready.worker_id, 500 * MIB, available_bytes=1000 * MIB)
        bench.planner.available_bytes = 1000 * MIB
        await bench.supervisor.unload("m", ExitCause.UNLOADED)
        load = asyncio.create_task(bench.supervisor.ensure_ready("n"))
        await asyncio.sleep(0.2)
        assert len(bench.guard.launches) == 1
        bench.planner.available_bytes = 1450 * MIB
        await load

    run(story)


def test_stop_all_in_mid_load_leaves_nothing_and_refuses_what_comes_later() -> None:
    async def story(bench: Bench) -> None:
        await bench.supervisor.ensure_ready("n")
        bench.backend.options["load_s"] = "600"
        load = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await until(lambda: bench.state() is WorkerState.STARTING)
        await bench.supervisor.stop_all(ExitCause.STOPPED_BY_USER)
        with pytest.raises(CoolheadError):
            await load
        assert all(process.poll() is not None for process in bench.guard.processes.values())
        with pytest.raises(AdmissionClosed):
            await bench.supervisor.ensure_ready("m")

    run(story)
