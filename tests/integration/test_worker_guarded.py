"""The supervisor with the real guard and an engine that misbehaves on purpose."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import psutil
import pytest

from app.core.backends.supervisor import Supervisor
from app.core.errors import WorkerStopped
from app.core.events import Event, EventBus, WorkerExited
from app.core.lifecycle import ExitCause, WorkerState
from app.core.settings import Settings
from app.guard.client import GuardClient
from tests.fakes.fake_backends import MIB, FakeBackend, FakeLibrary, FakePlanner, ask, until


class Bench:
    def __init__(self) -> None:
        self.events: list[Event] = []
        bus = EventBus()
        bus.subscribe(self.events.append)
        self.backend = FakeBackend()
        self.planner = FakePlanner()
        self.ahead_s = 0.0
        self.supervisor = Supervisor(
            guard=GuardClient,
            library=FakeLibrary(),
            planner=self.planner,
            backends=[self.backend],
            events=bus,
            settings=Settings,
            clock=lambda: time.monotonic() + self.ahead_s,
        )


def run(story: Callable[[Bench], Awaitable[None]]) -> None:
    async def told() -> None:
        bench = Bench()
        await bench.supervisor.start()
        try:
            async with asyncio.timeout(60):
                await story(bench)
        finally:
            await bench.supervisor.stop_all(ExitCause.STOPPED_BY_USER)

    asyncio.run(told())


def test_worker_that_eats_memory_is_stopped_at_its_cap_and_replaced_by_a_smaller_one() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["eat_mib_s"] = "1024"
        ready = await bench.supervisor.ensure_ready("m")
        why = bench.supervisor.worker_exit(ready.worker_id)
        with contextlib.suppress(OSError):
            await ask(ready.port, "/v1/completions", {"prompt": "x", "max_tokens": 2000})
        exited = await asyncio.wait_for(why, 20)
        assert exited.cause.is_memory, exited
        cap_bytes = 612 * MIB
        assert exited.evidence.own_peak_bytes <= cap_bytes + 128 * MIB
        assert "MiB" in exited.sentence
        with pytest.raises(WorkerStopped):
            bench.supervisor.lease("m")
        pause = bench.supervisor.cool_down("m")
        assert pause is not None
        assert exited.sentence in pause.sentence
        bench.backend.options.clear()
        bench.ahead_s += 11
        again = await bench.supervisor.ensure_ready("m")
        assert again.generation == 2
        assert bench.planner.steps == [0, 1]
        status, _ = await ask(again.port, "/v1/completions", {"prompt": "x"})
        assert status == 200
        told = [event for event in bench.events if isinstance(event, WorkerExited)]
        assert told[0].cause is exited.cause

    run(story)


def test_worker_that_crashes_leaves_or_ignores_signals_is_told_apart() -> None:
    async def story(bench: Bench) -> None:
        for option, cause in (
            ("crash_after", ExitCause.CRASHED),
            ("exit_after", ExitCause.EXITED),
        ):
            bench.backend.options = {option: "1", "ignore_sigterm": "1"}
            ready = await bench.supervisor.ensure_ready("m")
            why = bench.supervisor.worker_exit(ready.worker_id)
            await ask(ready.port, "/v1/completions", {"prompt": "x"})
            assert (await asyncio.wait_for(why, 20)).cause is cause
        bench.backend.options = {"hang_after": "1", "ignore_sigterm": "1"}
        ready = await bench.supervisor.ensure_ready("m")
        why = bench.supervisor.worker_exit(ready.worker_id)
        hanging = asyncio.create_task(ask(ready.port, "/v1/completions", {"prompt": "x"}))
        await asyncio.sleep(0.1)
        await bench.supervisor.unload("m", ExitCause.STOPPED_BY_USER)
        assert (await why).cause is ExitCause.STOPPED_BY_USER
        await asyncio.wait([hanging])
        hanging.exception()

    run(story)


def test_worker_that_eats_memory_while_it_loads_is_stopped_with_the_reason() -> None:
    async def story(bench: Bench) -> None:
        bench.backend.options["load_mib"] = "2000"
        with pytest.raises(WorkerStopped) as caught:
            await bench.supervisor.ensure_ready("m")
        assert ExitCause(str(caught.value.details["cause"])).is_memory
        view = bench.supervisor.worker("m")
        assert view is not None
        assert view.state is WorkerState.FAILED

    run(story)


def test_stop_all_with_a_worker_that_ignores_signals_leaves_nothing_within_five_seconds() -> None:
    pids: list[int] = []

    async def story(bench: Bench) -> None:
        bench.backend.options |= {"ignore_sigterm": "1", "load_s": "600"}
        load = asyncio.create_task(bench.supervisor.ensure_ready("m"))
        await until(lambda: (view := bench.supervisor.worker("m")) is not None and view.pid > 0)
        view = bench.supervisor.worker("m")
        assert view is not None
        pids.extend((view.pid, bench.supervisor.guard.pid))
        began = time.monotonic()
        await bench.supervisor.stop_all(ExitCause.STOPPED_BY_USER)
        assert time.monotonic() - began < 5
        await asyncio.wait([load])
        load.exception()

    run(story)
    assert not any(psutil.pid_exists(pid) for pid in pids)
