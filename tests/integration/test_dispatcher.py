"""Requests through the whole endpoint to a fake engine in a process of its own."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from app.core.lifecycle import ExitCause, PressureLevel, WorkerState
from app.core.router.places import Place
from tests.fakes.endpoint_bench import CHAT, EndpointBench, body, run, texts
from tests.fakes.fake_backends import until


async def broken_stream(
    bench: EndpointBench, asked: dict[str, Any], then: Callable[[], object]
) -> str:
    """What came of a stream that was broken off; `then` is called once at its first content."""
    seen: list[str] = []

    async def read() -> None:
        async with bench.client.stream("POST", CHAT, json=asked) as answer:
            is_due = True
            async for line in answer.aiter_lines():
                seen.append(line)
                if is_due and "content" in line:
                    is_due = False
                    then()

    with pytest.raises(httpx2.TransportError):
        await read()
    return "\n".join(seen)


def test_dispatcher_eight_first_requests_share_one_load() -> None:
    async def story(bench: EndpointBench) -> None:
        answers = await asyncio.gather(*(bench.chat(f"hello {n}") for n in range(8)))
        assert [answer.status_code for answer in answers] == [200] * 8
        assert len(bench.guard.launches) == 1
        assert bench.endpoint.in_flight == 0
        decision = json.loads(answers[0].headers["x-coolhead-decision"])
        assert decision["target"] == "auto"
        assert decision["microseconds"] >= 0

    run(story, options={"load_s": "0.2"})


def test_dispatcher_stream_goes_through_to_its_end() -> None:
    async def story(bench: EndpointBench) -> None:
        async with bench.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"] == "text/event-stream"
            text = (await answer.aread()).decode()
        assert len(texts(text)) == 5
        assert text.endswith("data: [DONE]\n\n")
        await until(lambda: bench.endpoint.in_flight == 0)

    run(story)


def test_dispatcher_client_that_leaves_in_mid_stream_frees_the_slot_once_it_is_idle() -> None:
    async def story(bench: EndpointBench) -> None:
        many = body(stream=True, max_tokens=2000)
        async with bench.client.stream("POST", CHAT, json=many) as answer:
            async for line in answer.aiter_lines():
                if "content" in line:
                    break
            assert bench.endpoint.in_flight == 1
        await until(lambda: bench.endpoint.in_flight == 0)
        assert bench.endpoint.running == 0
        assert (await bench.chat()).status_code == 200

    run(story, options={"token_s": "0.01"})


def test_dispatcher_prefill_of_a_client_that_left_holds_the_slot() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        with pytest.raises(httpx2.ReadTimeout):
            await bench.client.post(CHAT, json=body(stream=True), timeout=0.3)
        await until(lambda: bench.endpoint.running == 0)
        assert bench.endpoint.in_flight == 1  # the engine is still busy with it
        await until(lambda: bench.endpoint.in_flight == 0)

    run(story, options={"prefill_s": "1.0"})


def test_dispatcher_client_gone_while_queued_frees_its_place() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        held = [asyncio.create_task(bench.chat(max_tokens=300)) for _ in range(2)]
        await until(lambda: bench.endpoint.in_flight == 2)
        with pytest.raises(httpx2.ReadTimeout):
            await bench.client.post(CHAT, json=body(), timeout=0.2)
        await until(lambda: bench.endpoint.queued == 0)
        assert [answer.status_code for answer in await asyncio.gather(*held)] == [200, 200]

    run(story, options={"token_s": "0.003"})


def test_dispatcher_overload_every_client_gets_an_answer_or_a_time_to_come_back() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        answers = await asyncio.gather(*(bench.chat(f"hello {n}") for n in range(64)))
        codes = [answer.status_code for answer in answers]
        assert codes.count(200) == 10  # two slots and a queue of eight
        assert codes.count(429) == 54
        for answer in answers:
            if answer.status_code == 429:
                assert 1 <= int(answer.headers["retry-after"]) <= 60
                assert answer.json()["error"]["code"] == "queue_full"
        assert bench.endpoint.in_flight == 0
        assert bench.endpoint.queued == 0

    run(story, settings={"queue.max_queue_size": 8}, options={"token_s": "0.05"})


def test_dispatcher_killed_worker_is_named_and_the_next_request_gets_a_new_one() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        many = body(stream=True, max_tokens=2000)
        sentence = "It took 3 GiB and was allowed 2 GiB."
        seen = await broken_stream(
            bench, many, lambda: bench.guard.kill_for("m:1", ExitCause.CAP_EXCEEDED, sentence)
        )
        assert "It took 3 GiB and was allowed 2 GiB." in seen
        assert "worker_stopped" in seen
        await until(lambda: bench.endpoint.in_flight == 0)
        again = await bench.client.post(CHAT, json=many)
        assert again.status_code == 503  # the same request would do it again
        assert "It took 3 GiB" in again.json()["error"]["message"]
        assert 1 <= int(again.headers["retry-after"]) <= 60

    run(story, options={"token_s": "0.01"})


def test_dispatcher_worker_that_dies_before_headers_is_a_503_with_the_reason() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        asked = asyncio.create_task(bench.chat(stream=True))
        await until(lambda: bench.endpoint.in_flight == 1)
        bench.guard.kill_for("m:1", ExitCause.CRASHED, "It fell over.")
        answer = await asked
        assert answer.status_code == 503
        assert "It fell over." in answer.json()["error"]["message"]
        assert "retry-after" in answer.headers
        bench.backend.options["prefill_s"] = "0"
        assert (await bench.chat()).status_code == 200
        assert len(bench.guard.launches) == 2

    run(story, options={"prefill_s": "30"})


def test_dispatcher_context_exceeded_is_a_400_with_both_numbers() -> None:
    async def story(bench: EndpointBench) -> None:
        answer = await bench.chat("word " * 5000)
        error = answer.json()["error"]
        assert answer.status_code == 400
        assert error["code"] == "context_length_exceeded"
        assert "4096" in error["message"]
        assert "500" in error["message"]
        assert (await bench.chat()).status_code == 200

    run(story)


def test_dispatcher_unknown_model_path_method_and_body_are_named() -> None:
    async def story(bench: EndpointBench) -> None:
        assert (await bench.chat(model="nonesuch")).status_code == 404
        assert (await bench.client.get("/v1/nowhere")).status_code == 404
        assert (await bench.client.get(CHAT)).status_code == 405
        headers = {"content-type": "application/json"}
        bad = await bench.client.post(CHAT, content=b"{no json", headers=headers)
        assert bad.status_code == 400
        assert "JSON" in bad.json()["error"]["message"]

    run(story)


def test_dispatcher_model_in_the_path_and_in_other_letters_is_found() -> None:
    async def story(bench: EndpointBench) -> None:
        answer = await bench.client.post("/model/n/v1/chat/completions", json=body())
        assert answer.json()["model"] == "n"
        assert (await bench.chat(model="N.gguf")).json()["model"] == "n"
        assert len(bench.guard.launches) == 1
        text = {"model": "n", "prompt": "one two", "max_tokens": 3}
        plain = (await bench.client.post("/v1/completions?x=1", json=text)).json()
        assert plain["object"] == "text_completion"

    run(story)


def test_dispatcher_paused_pressed_and_open_again() -> None:
    async def story(bench: EndpointBench) -> None:
        bench.endpoint.pause(True)
        answer = await bench.chat()
        assert answer.status_code == 503
        assert "paused" in answer.json()["error"]["message"]
        assert (await bench.client.get("/health")).status_code == 503
        bench.endpoint.pause(False)
        bench.endpoint.press(PressureLevel.ELEVATED, "300 MiB are left.")
        answer = await bench.chat()
        assert answer.status_code == 503
        assert "300 MiB are left." in answer.json()["error"]["message"]
        assert "retry-after" in answer.headers
        bench.endpoint.press(PressureLevel.NORMAL)
        assert (await bench.chat()).status_code == 200

    run(story)


def test_dispatcher_newest_answer_is_broken_off_for_the_guard() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        many = body(stream=True, max_tokens=2000)
        seen = await broken_stream(
            bench, many, lambda: bench.endpoint.kill_newest("m", "Memory is low.")
        )
        assert "Memory is low." in seen
        await until(lambda: bench.endpoint.in_flight == 0)
        view = bench.supervisor.worker("m")
        assert view is not None
        assert view.state is WorkerState.READY

    run(story, options={"token_s": "0.01"})


def test_dispatcher_load_that_fails_is_told_to_all_who_wait() -> None:
    async def story(bench: EndpointBench) -> None:
        answers = await asyncio.gather(*(bench.chat() for _ in range(3)))
        assert [answer.status_code for answer in answers] == [503] * 3
        assert "out of cheese" in answers[0].json()["error"]["message"]
        assert "retry-after" in answers[0].headers

    run(story, options={"fail": "out of cheese"})


def test_dispatcher_what_makes_no_sense_or_cannot_be_done_is_a_400_without_a_time_to_retry() -> (
    None
):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

    async def story(bench: EndpointBench) -> None:
        senseless: tuple[dict[str, Any], ...] = ({"messages": []}, {"max_tokens": 0})
        for asked in senseless:
            answer = await bench.chat(**asked)
            assert answer.status_code == 400
            assert answer.json()["error"]["code"] == "invalid_request"
        answer = await bench.client.post(CHAT, headers={"content-type": "application/json"})
        assert "no body" in answer.json()["error"]["message"]
        assert bench.guard.launches == []
        embeddings = await bench.client.post("/v1/embeddings", json={"model": "m", "input": "x"})
        seen = await bench.chat(messages=[{"role": "user", "content": [picture]}], stream=True)
        for answer in (embeddings, seen):
            assert answer.status_code == 400, answer.text
            assert "retry-after" not in answer.headers
            assert answer.json()["error"]["code"] == "not_supported"
        assert bench.endpoint.in_flight == 0
        assert (await bench.chat()).status_code == 200
        lost = await bench.client.get("/v1/nowhere")
        assert (lost.status_code, lost.json()["error"]["code"]) == (404, "not_found")

    run(story)


def test_dispatcher_model_that_can_never_fit_is_a_400_and_makes_nobody_leave() -> None:
    async def story(bench: EndpointBench) -> None:
        assert (await bench.chat(model="n")).status_code == 200
        bench.planner.fits, bench.planner.most_bytes = False, 149 << 20
        answer = await bench.chat(model="m")
        assert answer.status_code == 400
        assert "retry-after" not in answer.headers
        error = answer.json()["error"]
        assert (error["code"], error["type"]) == ("does_not_fit", "invalid_request_error")
        assert "Waiting does not change that." in error["message"]
        assert bench.endpoint.model("n").place is Place.READY
        bench.planner.most_bytes = 1 << 30  # with others gone it would
        answer = await bench.chat(model="m")
        assert answer.status_code == 503
        assert "retry-after" in answer.headers

    run(story)


def test_dispatcher_unload_waits_for_the_answer() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        asked = asyncio.create_task(bench.chat(max_tokens=100))
        await until(lambda: bench.endpoint.in_flight == 1)
        bench.endpoint.unload("m")
        assert (await asked).status_code == 200

        def is_unloaded() -> bool:
            view = bench.supervisor.worker("m")
            return view is not None and view.state is WorkerState.UNLOADED

        await until(is_unloaded)
        assert (await bench.chat()).status_code == 200

    run(story, options={"token_s": "0.005"})
