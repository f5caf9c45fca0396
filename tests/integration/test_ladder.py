"""What the guard says, and what requests then hear: through the whole endpoint, with a fake guard."""

import asyncio
import time

import httpx2
import pytest

from app.core.lifecycle import ExitCause, PressureLevel
from app.core.router import gate
from app.core.router.ladder import Ladder
from app.core.router.places import Place
from app.guard.protocol import Samples, Verdict
from tests.fakes.endpoint_bench import EndpointBench, run
from tests.fakes.fake_backends import until

LOW = "Only 1.4 GiB of 15.0 GiB memory available (line 1.8 GiB)."
SLOW_LOAD = {"load_s": "1.5"}


class Told:
    """Says what a guard says."""

    def __init__(self, bench: EndpointBench) -> None:
        self.bench = bench
        self.ladder = Ladder(bench.supervisor, bench.endpoint, bench.bus)
        self.number = 0

    def verdict(
        self, step: str, level: PressureLevel, worker_id: str = "", sentence: str = LOW
    ) -> None:
        self.number += 1
        cause = ExitCause.CAP_EXCEEDED if worker_id else ExitCause.MACHINE_MEMORY_LOW
        self.bench.guard.on_message(Verdict(self.number, level, step, cause, sentence, worker_id))

    def samples(self, level: PressureLevel) -> None:
        self.bench.guard.on_message(Samples(0.0, 1 << 30, 16 << 30, 0, level, []))

    def close(self) -> None:
        self.verdict("close_admission", PressureLevel.ELEVATED)

    def open(self) -> None:
        self.verdict("admit", PressureLevel.NORMAL, sentence="Memory is fine again.")
        self.samples(PressureLevel.NORMAL)

    def counted(self) -> list[tuple[bool, int]]:
        return [(one.is_loading, one.in_flight) for one in self.bench.guard.activities]


def words(answer: httpx2.Response) -> str:
    return str(answer.json()["error"]["message"])


def test_ladder_model_that_is_loaded_for_a_request_is_never_told_to_be_idle() -> None:
    async def story(bench: EndpointBench) -> None:
        told = Told(bench)
        asked = asyncio.create_task(bench.chat())
        await until(lambda: bool(told.counted()))
        assert told.counted() == [(True, 1)]
        assert (await asked).status_code == 200
        assert all(count for _, count in told.counted()[:2])
        await until(lambda: told.counted()[-1] == (False, 0))

    run(story, options=SLOW_LOAD)


def test_ladder_door_that_shuts_in_mid_load_is_told_soon_and_there_is_no_second_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "PRESSURE_PATIENCE_S", 3.0)

    async def story(bench: EndpointBench) -> None:
        told = Told(bench)
        asked = asyncio.create_task(bench.chat())
        await until(lambda: bool(bench.guard.launches))
        started_s = time.monotonic()
        told.close()
        await until(lambda: bench.endpoint.model("m").place is Place.READY)
        assert not told.counted()[-1][0]
        assert told.counted()[-1][1] == 1
        worker_id = bench.guard.launches[0].worker_id
        told.verdict("unload_idle", PressureLevel.ELEVATED, worker_id)  # it may think so; it is not
        answer = await asked
        assert time.monotonic() - started_s < 10
        assert answer.status_code == 503
        assert LOW in words(answer)
        assert "retry-after" in answer.headers
        await until(lambda: told.counted()[-1] == (False, 0))
        assert bench.endpoint.model("m").place is Place.READY
        told.verdict("unload_idle", PressureLevel.ELEVATED, worker_id)
        await until(lambda: bench.endpoint.model("m").place is Place.UNLOADED)
        told.open()
        answer = await bench.chat()
        assert answer.status_code == 503
        assert "had to go before it answered" in words(answer)
        assert LOW in words(answer)
        assert len(bench.guard.launches) == 1
        assert (await bench.chat(model="n")).status_code == 200
        await bench.load("m")  # the user may ask for it
        assert (await bench.chat()).status_code == 200

    run(story, options=SLOW_LOAD)


def test_ladder_load_that_outlasts_the_patience_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "PRESSURE_PATIENCE_S", 0.5)

    async def story(bench: EndpointBench) -> None:
        told = Told(bench)
        asked = asyncio.create_task(bench.chat())
        await until(lambda: bool(bench.guard.launches))
        told.close()
        answer = await asked
        assert (answer.status_code, LOW in words(answer)) == (503, True)
        await until(lambda: bench.endpoint.model("m").place is Place.UNLOADED)
        told.open()
        assert "had to go before it answered" in words(await bench.chat())

    run(story, options={"load_s": "60"})


def test_ladder_worker_near_its_cap_closes_its_model_alone_and_makes_way_for_a_fresh_one() -> None:
    near = "m has taken 900 MiB of its cap of 1000 MiB."

    async def story(bench: EndpointBench) -> None:
        told = Told(bench)
        assert (await bench.chat()).status_code == 200
        worker_id = bench.guard.launches[0].worker_id
        told.verdict("close_admission", PressureLevel.ELEVATED, worker_id, near)
        told.samples(PressureLevel.ELEVATED)
        assert told.ladder.level is PressureLevel.ELEVATED
        answer = await bench.chat()
        assert (answer.status_code, near in words(answer)) == (503, True)
        assert "retry-after" in answer.headers
        assert (await bench.client.get("/health")).status_code == 200
        assert (await bench.chat(model="n")).status_code == 200
        await until(lambda: bench.endpoint.model("m").place is Place.UNLOADED)
        told.open()
        assert (await bench.chat()).status_code == 200
        assert [one.model_id for one in bench.guard.launches] == ["m", "n", "m"]

    run(story)


def test_ladder_verdict_on_the_machine_is_not_taken_for_one_on_a_model_without_a_worker() -> None:
    async def story(bench: EndpointBench) -> None:
        told = Told(bench)
        await bench.load("m")
        bench.endpoint.unload("m")
        await until(lambda: bench.endpoint.model("m").place is Place.UNLOADED)
        asked = asyncio.create_task(bench.chat(model="n", max_tokens=5000))
        await until(lambda: bench.endpoint.in_flight == 1)
        told.verdict("cancel_newest", PressureLevel.CRITICAL)
        answer = await asked
        assert (answer.status_code, "broken off" in words(answer)) == (503, True)

    run(story)


def test_ladder_critical_with_nothing_to_break_off_sends_those_away_who_wait() -> None:
    async def story(bench: EndpointBench) -> None:
        told = Told(bench)
        asked = asyncio.create_task(bench.chat())
        await until(lambda: bool(bench.guard.launches))
        told.verdict("cancel_newest", PressureLevel.CRITICAL)
        answer = await asked
        assert (answer.status_code, LOW in words(answer)) == (503, True)
        await until(lambda: bench.endpoint.model("m").place is Place.UNLOADED)
        told.samples(PressureLevel.CRITICAL)
        assert (await bench.chat(model="n")).status_code == 503
        told.ladder.guard_lost()
        bench.backend.options.clear()
        assert (await bench.chat(model="n")).status_code == 200

    run(story, options={"load_s": "60"})
