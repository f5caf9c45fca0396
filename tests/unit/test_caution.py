"""Safe mode and missing GPUs: what is held back, what the user is told, and how it is undone."""

import asyncio
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from app.cli.doctor import _gone
from app.core.backends.base import EngineInfo
from app.core.backends.careful import CarefulPlanner
from app.core.backends.caution import Caution, reduced
from app.core.backends.planner import EngineUse, Live, Planner, Priced
from app.core.errors import AdmissionClosed
from app.core.events import Event, EventBus, Notice, WorkerExited, WorkerStateChanged
from app.core.hardware.last_seen import remember_gpus
from app.core.hardware.machine import Gpu, Machine
from app.core.lifecycle import ExitCause, WorkerState
from app.core.models.spec import ModelSpec
from app.core.paths import Paths
from app.core.settings import Settings

PLAIN = Machine(16 << 30, 8 << 30)
CARD = Gpu("CUDA0", "RTX 9999", 1 << 34, 1 << 34, uuid="GPU-1")
WITH_CARD = dataclasses.replace(PLAIN, gpus=(CARD,))
ENGINE = EngineUse(EngineInfo("xllamacpp", "1", ""))


@dataclasses.dataclass(frozen=True)
class Spec:
    """As much of a model as is asked about here."""

    model_id: str = "m"
    format: str = "gguf"


class FakePlanner:
    """Prices nothing; keeps the settings it was asked for."""

    def __init__(self, machine: Machine = PLAIN) -> None:
        self.now = machine
        self.asked: list[Settings] = []

    def machine(self) -> Machine:
        return self.now

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        self.asked.append(settings)
        nothing = cast("Any", None)
        return Priced(nothing, nothing, nothing, self.now)

    def record(self, *_: object) -> None:
        return


class Scene:
    """One run of the app, as far as caution sees it."""

    def __init__(self, paths: Paths, machine: Machine = PLAIN, boot: str = "b1") -> None:
        self.events = EventBus()
        self.notices: list[Notice] = []
        self.events.subscribe(self._hear)
        self.caution = Caution(paths, self.events, lambda: boot)
        self.planner = FakePlanner(machine)
        self.caution.begin(machine)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.notices.append(event)

    def load(self, model_id: str = "m", settings: Settings | None = None) -> Settings:
        """What a load of the model is priced with."""
        planner = CarefulPlanner(cast("Planner", self.planner), self.caution)
        spec = cast("ModelSpec", Spec(model_id))
        planner.price(spec, settings or Settings(), Live(), ENGINE, 0)
        return self.planner.asked[-1]

    def kill(self, model_id: str = "m") -> None:
        cause = ExitCause.CAP_EXCEEDED
        self.events.publish(WorkerExited(model_id, 7, cause, "It passed its cap of 1 GiB."))


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Paths], Any]], None]:
    paths = Paths(tmp_path / "c", tmp_path / "s", tmp_path / "d", tmp_path / "l")
    paths.prepare()

    def on_a_loop(work: Callable[[Paths], Any]) -> None:
        async def body() -> None:
            result = work(paths)
            if asyncio.iscoroutine(result):
                await result

        asyncio.run(body())

    return on_a_loop


def test_caution_after_an_orderly_end_holds_nothing_back(run: Any) -> None:
    def story(paths: Paths) -> None:
        first = Scene(paths)
        first.load()
        first.caution.end()
        second = Scene(paths)
        assert second.caution.sentence == ""
        assert second.load() == Settings()
        second.caution.tell()
        assert not second.notices

    run(story)


def test_caution_after_an_unclean_end_serves_smaller_until_the_user_leaves(run: Any) -> None:
    def story(paths: Paths) -> None:
        first = Scene(paths)
        first.events.publish(WorkerStateChanged("llama", WorkerState.STARTING))
        second = Scene(paths)
        assert "ended with llama loaded" in second.caution.sentence
        assert second.load().model.mood == "quiet"
        second.caution.tell()
        assert "safe-mode leave" in second.notices[0].text
        second.caution.allow_load()
        assert second.load().model.mood == "quiet"
        assert second.caution.leave()
        assert second.caution.sentence == ""
        assert second.load() == Settings()
        assert not second.caution.leave()

    run(story)


def test_caution_marker_names_only_what_is_in_memory(run: Any) -> None:
    def story(paths: Paths) -> None:
        first = Scene(paths)
        first.events.publish(WorkerStateChanged("llama", WorkerState.READY))
        first.events.publish(WorkerStateChanged("llama", WorkerState.UNLOADED))
        assert "loaded" not in Scene(paths, boot="b2").caution.sentence.partition(".")[0]

    run(story)


def test_caution_third_kill_in_mid_run_asks_and_a_load_by_hand_goes_on_smaller(run: Any) -> None:
    def story(paths: Paths) -> None:
        scene = Scene(paths)
        scene.kill("a")
        scene.kill("b")
        assert scene.load() == Settings()
        assert not scene.notices
        scene.kill("c")
        assert len(scene.notices) == 1
        with pytest.raises(AdmissionClosed, match=r"503.*3 times.*coolhead load") as refused:
            scene.load()
        assert refused.value.details["needs_user"] is True
        assert len(scene.planner.asked) == 1
        scene.caution.allow_load()
        assert scene.load().model.mood == "quiet"
        scene.kill("a")
        assert scene.load()

    run(story)


def test_caution_three_kills_of_the_last_run_ask_at_the_next_start(run: Any) -> None:
    def story(paths: Paths) -> None:
        first = Scene(paths)
        for _ in range(3):
            first.kill()
        first.caution.end()
        second = Scene(paths)
        with pytest.raises(AdmissionClosed):
            second.load()
        second.caution.leave()
        assert second.load() == Settings()
        second.caution.end()
        assert Scene(paths).caution.sentence == ""

    run(story)


def test_caution_ends_that_are_not_for_memory_do_not_count(run: Any) -> None:
    def story(paths: Paths) -> None:
        scene = Scene(paths)
        for cause in (ExitCause.UNLOADED, ExitCause.CRASHED, ExitCause.STOPPED_BY_USER):
            scene.events.publish(WorkerExited("m", 7, cause, ""))
        assert scene.load() == Settings()

    run(story)


def test_caution_missing_gpu_loads_nothing_until_the_user_says_so(run: Any) -> None:
    def story(paths: Paths) -> None:
        remember_gpus(paths, WITH_CARD)
        scene = Scene(paths, PLAIN)
        scene.caution.tell()
        assert scene.notices[0].title == "A GPU is missing"
        with pytest.raises(AdmissionClosed, match="RTX 9999"):
            scene.load()
        assert not scene.planner.asked
        scene.caution.allow_load()
        assert scene.load() == Settings()
        assert scene.caution.sentence == ""
        scene.caution.end()
        assert Scene(paths, PLAIN).caution.sentence == ""

    run(story)


def test_caution_gpu_that_comes_back_needs_no_word(run: Any) -> None:
    def story(paths: Paths) -> None:
        remember_gpus(paths, WITH_CARD)
        scene = Scene(paths, PLAIN)
        with pytest.raises(AdmissionClosed):
            scene.load()
        scene.planner.now = WITH_CARD
        assert scene.load() == Settings()
        assert scene.caution.sentence == ""

    run(story)


def test_caution_gpu_that_no_engine_can_use_any_more_is_missing_at_the_load(run: Any) -> None:
    async def story(paths: Paths) -> None:
        first = Scene(paths, WITH_CARD)
        first.load()
        first.caution.end()
        broken = dataclasses.replace(CARD, is_usable=False, reason="the engine has no such device")
        scene = Scene(paths, dataclasses.replace(PLAIN, gpus=(broken,)))
        assert scene.caution.sentence == ""
        for _ in range(2):
            with pytest.raises(AdmissionClosed, match="RTX 9999"):
                scene.load()
        await asyncio.sleep(0)
        assert len(scene.notices) == 1
        cpu_only = Settings().replace({"model.placement": "cpu_only"})
        assert scene.load(settings=cpu_only) == cpu_only
        with pytest.raises(AdmissionClosed):
            scene.load()
        scene.caution.leave()
        assert scene.load() == Settings()

    run(story)


def test_reduced_halves_what_is_set_and_forces_nothing() -> None:
    wanted = Settings().replace(
        {
            "model.mood": "full",
            "model.context_tokens": 8192,
            "model.slots": 4,
            "memory.force_load": True,
            "memory.prompt_cache_bytes": 1 << 30,
        }
    )
    found = reduced(wanted)
    assert (found.model.mood, found.model.context_tokens, found.model.slots) == ("quiet", 4096, 2)
    assert not found.memory.force_load
    assert found.memory.prompt_cache_bytes == 0
    small = Settings().replace({"model.context_tokens": 512, "model.slots": 1})
    assert reduced(small).model.context_tokens == 512


def test_doctor_names_a_gpu_that_is_gone(coolhead_home: Paths) -> None:
    assert not list(_gone(PLAIN, coolhead_home))
    remember_gpus(coolhead_home, WITH_CARD)
    (finding,) = _gone(PLAIN, coolhead_home)
    assert "RTX 9999" in finding.text
    assert "safe-mode leave" in finding.advice
    idle = dataclasses.replace(CARD, is_usable=False)
    assert not list(_gone(dataclasses.replace(PLAIN, gpus=(idle,)), coolhead_home))
