"""The limits that the user sets end answers properly, and say which limit it was."""

import json
from typing import Any

from tests.fakes.endpoint_bench import CHAT, EndpointBench, body, run, texts
from tests.fakes.fake_backends import until


async def streamed(bench: EndpointBench, **more: Any) -> str:
    async with bench.client.stream("POST", CHAT, json=body(stream=True, **more)) as answer:
        assert answer.status_code == 200
        return (await answer.aread()).decode()


def chunks(text: str) -> list[dict[str, Any]]:
    lines = [
        line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")
    ]
    return [json.loads(line) for line in lines]


def ended_by(text: str) -> tuple[str, str]:
    """The finish reason, and the limit that was named."""
    found = chunks(text)
    limits = [chunk["coolhead"]["limit"] for chunk in found if "coolhead" in chunk]
    finish = [c["choices"][0].get("finish_reason") for c in found if c.get("choices")]
    assert text.endswith("data: [DONE]\n\n")
    return next(reason for reason in reversed(finish) if reason), "".join(limits)


def test_limits_setting_of_tokens_ends_streams_and_whole_answers() -> None:
    async def story(bench: EndpointBench) -> None:
        text = await streamed(bench, max_tokens=2000)
        assert ended_by(text) == ("length", "max_tokens")
        assert len(texts(text)) <= 4
        await until(lambda: bench.endpoint.in_flight == 0)
        whole = (await bench.chat(max_tokens=2000)).json()
        assert whole["usage"]["completion_tokens"] == 4

    run(story, settings={"limits.max_tokens": 4})


def test_limits_setting_of_seconds_ends_a_stream() -> None:
    async def story(bench: EndpointBench) -> None:
        text = await streamed(bench, max_tokens=2000)
        assert ended_by(text) == ("length", "max_seconds")
        await until(lambda: bench.endpoint.in_flight == 0)

    run(story, settings={"limits.max_seconds": 1.0}, options={"token_s": "0.05"})


def test_limits_repetition_ends_a_loop_unless_the_request_or_the_user_wants_it() -> None:
    async def story(bench: EndpointBench) -> None:
        assert ended_by(await streamed(bench, max_tokens=900))[1] == "repetition"
        wanted = await streamed(bench, max_tokens=900, tags=["allow-repetition"])
        assert ended_by(wanted)[1] == ""

    run(story, options={"token_s": "0.0005"})

    async def off(bench: EndpointBench) -> None:
        assert ended_by(await streamed(bench, max_tokens=900))[1] == ""

    run(off, settings={"limits.stop_repetition": False}, options={"token_s": "0.0005"})
