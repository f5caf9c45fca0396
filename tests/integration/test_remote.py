"""Targets elsewhere that answer, die, hang and lie; fallbacks, pools and their breakers."""

import asyncio
from collections.abc import Awaitable, Callable
from types import MappingProxyType
from typing import Any

import httpx2
import pytest

from app.core.lifecycle import PressureLevel
from app.core.router.decision import Action, CachePolicy, TargetKind
from app.core.router.rules import (
    Conditions,
    PoolTarget,
    RemoteTarget,
    RoutingRules,
    Rule,
    Strategy,
)
from tests.fakes.endpoint_bench import EndpointBench, run, texts
from tests.fakes.fake_backends import until
from tests.fakes.fake_remote import FakeRemote

NO_PROXY = {"use_proxy": False, "connect_timeout_s": 2.0}
ASKED = [{"role": "user", "content": "hello"}]


def rules_for(
    remotes: list[FakeRemote],
    action: Action,
    pool: PoolTarget | None = None,
    **more: Any,
) -> RoutingRules:
    targets = {
        remote.name: RemoteTarget(remote.name, remote.url, **{**NO_PROXY, **more})
        for remote in remotes
    }
    pools = {pool.name: pool} if pool else {}
    return RoutingRules((Rule("all", Conditions(), action),), targets, pools)


def tell(
    story: Callable[[EndpointBench, FakeRemote, FakeRemote], Awaitable[None]],
    action: Action,
    pool: PoolTarget | None = None,
    **more: Any,
) -> None:
    """A story with two remotes, `far` and `wide`."""

    async def whole(bench: EndpointBench) -> None:
        far, wide = FakeRemote("far"), FakeRemote("wide")
        await far.start()
        await wide.start()
        try:
            rules = rules_for([far, wide], action, pool, **more)
            bench.use(rules)
            await story(bench, far, wide)
        finally:
            await far.stop()
            await wide.stop()

    run(whole)


FAR = Action(target="far", kind=TargetKind.REMOTE)


def falls_back(reason: str, target: str = "wide") -> Action:
    return Action(
        target="far", kind=TargetKind.REMOTE, fallbacks=MappingProxyType({reason: target})
    )


def said(answer: httpx2.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def test_remote_answers_whole_and_streamed_without_our_fields() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        answer = await bench.chat("hi", model="mine", tags=["x"], session="s")
        assert said(answer) == "I am far."
        assert far.asked()[0]["model"] == "big"
        assert not {"tags", "session"} & far.asked()[0].keys()
        stream = await bench.chat("hi", stream=True)
        assert texts(stream.text) == ["I ", "am ", "far", "."]
        assert stream.text.endswith("data: [DONE]\n\n")
        assert not bench.guard.launches
        assert bench.endpoint.running == 0

    tell(story, FAR, models={"mine": "big"})


def test_remote_key_from_the_environment_is_sent_and_a_missing_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        monkeypatch.delenv("TEST_REMOTE_KEY", raising=False)
        missing = await bench.chat()
        assert missing.status_code == 502
        assert "TEST_REMOTE_KEY" in missing.json()["error"]["message"]
        monkeypatch.setenv("TEST_REMOTE_KEY", "k-1")
        assert said(await bench.chat()) == "I am far."
        assert far.seen[-1][1]["authorization"] == "Bearer k-1"
        assert far.seen[-1][1]["x-team"] == "blue"

    tell(story, FAR, key_env="TEST_REMOTE_KEY", headers={"x-team": "blue"})


@pytest.mark.parametrize(
    ("mode", "status"), [("500", 502), ("429", 429), ("401", 502), ("400", 400), ("context", 400)]
)
def test_remote_errors_are_told_as_ours(mode: str, status: int) -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        far.mode = mode
        answer = await bench.chat()
        assert answer.status_code == status
        if mode == "429":
            assert answer.headers["retry-after"] == "7"
        if mode == "context":
            assert answer.json()["error"]["code"] == "context_length_exceeded"

    tell(story, FAR)


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("500", "failed"),
        ("drop", "failed"),
        ("hang", "failed"),
        ("429", "overloaded"),
        ("503", "unavailable"),
        ("401", "unavailable"),
        ("context", "context_exceeded"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_remote_failure_before_the_first_byte_goes_to_the_fallback(
    mode: str, reason: str, stream: bool
) -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        far.mode = mode
        answer = await bench.chat(stream=stream)
        assert answer.status_code == 200
        assert "wide" in answer.text
        assert answer.headers["x-coolhead-fallback"] == f"{reason}: far -> wide"

    tell(story, falls_back(reason), first_byte_timeout_s=1.0)


def test_remote_that_is_not_there_goes_to_a_local_model() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        await far.stop()
        answer = await bench.chat()
        assert answer.json()["model"] == "m"
        await far.start()

    tell(story, falls_back("unavailable", "auto"))


def test_remote_local_model_under_pressure_goes_to_the_remote() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        assert (await bench.chat()).json()["model"] == "m"
        bench.endpoint.press(PressureLevel.ELEVATED, "Memory is low.")
        assert said(await bench.chat()) == "I am far."

    tell(story, Action(fallbacks=MappingProxyType({"unavailable": "far"})))


def test_remote_answer_of_a_fallback_is_not_kept_as_the_targets_own() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        bench.endpoint.press(PressureLevel.ELEVATED, "Memory is low.")
        assert said(await bench.chat()) == "I am far."
        bench.endpoint.press(PressureLevel.NORMAL)
        answer = await bench.chat()
        assert "x-coolhead-cache" not in answer.headers
        assert answer.json()["model"] == "m"

    kept = CachePolicy(60.0)
    tell(story, Action(fallbacks=MappingProxyType({"unavailable": "far"}), cache=kept))


def test_remote_takes_what_the_local_slots_and_context_cannot() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, wide: FakeRemote) -> None:
        bench.backend.options["token_s"] = "0.02"
        held = [asyncio.create_task(bench.chat(f"hold {n}", max_tokens=100)) for n in range(2)]
        await until(lambda: bench.endpoint.in_flight == 2)
        assert said(await bench.chat("one more")) == "I am far."
        for answer in await asyncio.gather(*held):
            assert answer.json()["model"] == "m"
        assert said(await bench.chat("word " * 5000)) == "I am wide."

    ways = MappingProxyType({"overloaded": "far", "context_exceeded": "wide"})
    tell(story, Action(overload="degrade", fallbacks=ways))


def test_remote_takes_over_from_a_worker_that_dies_before_its_first_token() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        bench.backend.options["exit_after"] = "0"
        stream = await bench.chat(stream=True)
        assert texts(stream.text) == ["I ", "am ", "far", "."]
        assert said(await bench.chat()) == "I am far."

    tell(story, Action(fallbacks=MappingProxyType({"failed": "far"})))


def test_remote_key_from_the_keyring_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {("coolhead", "office"): "k-2"}
    monkeypatch.setattr("keyring.get_password", lambda service, name: keys.get((service, name)))

    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        assert said(await bench.chat()) == "I am far."
        assert far.seen[-1][1]["authorization"] == "Bearer k-2"
        keys.clear()
        missing = await bench.chat()
        assert "coolhead/office" in missing.json()["error"]["message"]

    tell(story, FAR, key_keyring="office")


def test_remote_fallbacks_do_not_go_round_in_circles() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, wide: FakeRemote) -> None:
        far.mode, wide.mode = "500", "429"
        answer = await bench.chat()
        assert answer.status_code == 429
        assert (len(far.asked()), len(wide.asked())) == (1, 1)

    ways = MappingProxyType({"failed": "wide", "overloaded": "far"})
    tell(story, Action(target="far", kind=TargetKind.REMOTE, fallbacks=ways))


@pytest.mark.parametrize("mode", ["reset_mid", "cut_mid"])
def test_remote_that_breaks_off_after_content_is_told_by_an_event_and_a_reset(mode: str) -> None:
    async def story(bench: EndpointBench, far: FakeRemote, wide: FakeRemote) -> None:
        far.mode = mode
        seen: list[str] = []

        async def read() -> None:
            fields = {"model": "x", "messages": ASKED, "stream": True}
            async with bench.client.stream("POST", "/v1/chat/completions", json=fields) as answer:
                async for line in answer.aiter_lines():
                    seen.append(line)  # noqa: PERF401 - what came before the break counts

        with pytest.raises(httpx2.TransportError):
            await read()
        assert any('"error"' in line for line in seen)
        assert texts("\n".join(seen)) == ["I ", "am "]
        assert not wide.asked()

    tell(story, falls_back("failed"))


def test_remote_breaker_opens_and_closes_again() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        far.mode = "500"
        for _number in range(3):
            assert (await bench.chat()).status_code == 502
        refused = await bench.chat()
        assert refused.status_code == 503
        assert "left alone" in refused.json()["error"]["message"]
        assert len(far.asked()) == 3
        far.mode = "ok"
        await asyncio.sleep(int(refused.headers["retry-after"]))
        await until_answered(bench)
        assert said(await bench.chat()) == "I am far."

    tell(story, FAR)


async def until_answered(bench: EndpointBench) -> None:
    for _ in range(100):
        if (await bench.chat()).status_code == 200:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the breaker never closed")


@pytest.mark.parametrize("strategy", ["round_robin", "least_in_flight"])
def test_remote_pool_uses_its_members_and_leaves_out_the_sick(strategy: Strategy) -> None:
    async def story(bench: EndpointBench, far: FakeRemote, wide: FakeRemote) -> None:
        for _number in range(4):
            await bench.chat()
        assert (len(far.asked()), len(wide.asked())) == (2, 2)
        far.mode = "500"
        for _number in range(8):
            assert said(await bench.chat()) == "I am wide."
        assert len(far.asked()) <= 2 + 3  # its breaker is open by then
        wide.mode = "500"
        answers = [await bench.chat() for _ in range(4)]
        assert {answer.status_code for answer in answers} <= {502, 503}

    pool = PoolTarget("both", ("far", "wide"), strategy, health_path="", back_off_s=60.0)
    tell(story, Action(target="both", kind=TargetKind.POOL), pool)


def test_remote_pool_health_checks_find_the_sick_and_the_well_again() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, wide: FakeRemote) -> None:
        far.mode = "500"
        await until(lambda: len(far.seen) >= 3)  # so many failed checks open its breaker
        await asyncio.sleep(0.1)
        for _number in range(4):
            assert said(await bench.chat()) == "I am wide."
        assert not far.asked()
        far.mode = "ok"
        checks = len(far.seen)
        await until(lambda: len(far.seen) > checks)
        await asyncio.sleep(0.1)
        for _number in range(2):
            await bench.chat()
        assert far.asked()

    pool = PoolTarget("both", ("far", "wide"), health_interval_s=0.1, back_off_s=0.5)
    tell(story, Action(target="both", kind=TargetKind.POOL), pool)


def test_remote_client_that_leaves_lets_go_of_the_remote() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        far.mode = "hang"
        with pytest.raises(httpx2.ReadTimeout):
            await bench.client.post(
                "/v1/chat/completions", json={"model": "x", "messages": ASKED}, timeout=0.3
            )
        await until(lambda: bench.endpoint.running == 0)
        far.mode = "ok"
        assert said(await bench.chat()) == "I am far."

    tell(story, FAR)


def test_remote_full_one_is_overloaded() -> None:
    async def story(bench: EndpointBench, far: FakeRemote, _: FakeRemote) -> None:
        far.mode = "hang"
        held = asyncio.create_task(bench.chat())
        await until(lambda: len(far.asked()) == 1)
        refused = await bench.chat()
        assert refused.status_code == 429
        held.cancel()

    tell(story, FAR, max_in_flight=1)
