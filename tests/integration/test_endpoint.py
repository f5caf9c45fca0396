"""What the endpoint answers besides plain requests: pages, admin, rules' actions, limits, shutdown."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.core.backends.planner import Priced
from app.core.errors import EndpointError, RoutesInvalid, SettingsInvalid
from app.core.events import Notice, RoutesReloaded
from app.core.handle import ApplySettings, LoadModel, Pause, Quit, ReloadRoutes, ShowWindow, Stop
from app.core.lifecycle import ExitCause, WorkerState
from app.core.models.fit import Fit
from app.core.router import job
from app.core.router.decision import Action, CachePolicy, TargetKind
from app.core.router.rules import AnyAll, Conditions, RoutingRules, Rule
from tests.fakes.endpoint_bench import CHAT, TOKEN, EndpointBench, body, run, texts
from tests.fakes.fake_backends import MIB, FakePlanner, until

BEARER = {"authorization": f"Bearer {TOKEN}"}


def tagged(name: str, action: Action) -> Rule:
    return Rule(name, Conditions(tags=AnyAll(any=(name,))), action)


def test_endpoint_models_shows_the_context_that_is_really_allocated() -> None:
    async def story(bench: EndpointBench) -> None:
        before = (await bench.client.get("/v1/models")).json()
        assert [model["id"] for model in before["data"]] == ["m", "n", "o"]
        assert not before["data"][0]["is_loaded"]
        assert "context_length" not in before["data"][0]
        await bench.load()
        after = (await bench.client.get("/v1/models/m")).json()
        assert after["context_length"] == after["max_model_len"] == 4096
        assert after["slots"] == 2
        assert (await bench.client.get("/v1/models/zzz")).status_code == 404
        assert (await bench.client.post("/v1/models", json={})).status_code == 405
        assert (await bench.client.get("/health")).json() == {"status": "ok"}

    run(story)


def test_endpoint_admin_calls_become_commands_and_need_the_token() -> None:
    async def story(bench: EndpointBench) -> None:
        assert (await bench.client.get("/admin/status")).status_code in {401, 403}
        status = (await bench.client.get("/admin/status", headers=BEARER)).json()
        assert status["state"] == "stopped"
        assert status["pressure_level"] == "normal"

        async def call(path: str, fields: dict[str, Any] | None = None) -> httpx2.Response:
            return await bench.client.post(f"/admin/{path}", json=fields or {}, headers=BEARER)

        for path, fields in (
            ("pause", {"paused": True}),
            ("load", {"model": "m"}),
            ("settings", {"changes": {"server.port": 1}}),
            ("routes/reload", {}),
            ("show", {}),
            ("stop", {}),
            ("quit", {}),
        ):
            assert (await call(path, fields)).json()["ok"], path
        await until(lambda: len(bench.commands) == 7)
        assert bench.commands == [
            Pause(True),
            LoadModel("m"),
            ApplySettings({"server.port": 1}),
            ReloadRoutes(),
            ShowWindow(),
            Stop(),
            Quit(),
        ]
        assert (await call("nonesuch")).status_code == 404
        assert (await call("load")).status_code == 400

    run(story)


def test_endpoint_admin_events_are_told_as_they_happen() -> None:
    async def story(bench: EndpointBench) -> None:
        async with bench.client.stream("GET", "/admin/events", headers=BEARER) as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == ": events"
            bench.bus.publish(Notice("c", "A title", "A text"))
            async for line in lines:
                if line.startswith("data: "):
                    told = json.loads(line[6:])
                    break
        assert (told["event"], told["title"]) == ("Notice", "A title")

    run(story)


def test_endpoint_close_breaks_off_streams_and_says_why() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.load()
        seen: list[str] = []

        async def read() -> None:
            many = body(stream=True, max_tokens=2000)
            async with bench.client.stream("POST", CHAT, json=many) as answer:
                async for line in answer.aiter_lines():
                    seen.append(line)  # noqa: PERF401 - it is looked at while it grows

        task = asyncio.create_task(read())
        await until(lambda: bool(seen))
        await bench.endpoint.close(0.1)
        with pytest.raises(httpx2.TransportError):
            await task
        assert "stopping" in "".join(seen)
        assert bench.endpoint.in_flight == 0
        assert bench.endpoint.url == ""
        await bench.endpoint.open(0)
        bench.client.base_url = bench.base
        assert (await bench.chat()).status_code == 200

    run(story, options={"token_s": "0.01"})


def test_endpoint_closed_in_mid_load_serves_again_once_open() -> None:
    async def story(bench: EndpointBench) -> None:
        asked = asyncio.create_task(bench.chat())
        await until(lambda: bool(bench.guard.launches))
        await bench.endpoint.close(0.0)
        answer = await asked
        assert answer.status_code == 503
        assert "stopping" in answer.json()["error"]["message"]
        await bench.supervisor.stop_all(ExitCause.STOPPED_BY_USER, keep_guard=True)
        await bench.endpoint.open(0)
        bench.client.base_url = bench.base
        bench.backend.options["load_s"] = "0"
        assert (await bench.chat()).status_code == 200

    run(story, options={"load_s": "20"})


def test_endpoint_listens_on_loopback_only() -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.endpoint.close(0)
        with pytest.raises(SettingsInvalid, match=r"127\.0\.0\.1"):
            bench.settings.replace({"server.listen": "0.0.0.0"})
        # Were it to get past the settings, the socket would still not be opened.
        server = replace(bench.settings.server, listen="0.0.0.0")  # type: ignore[arg-type]
        bench.settings = replace(bench.settings, server=server)
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1"):
            await bench.endpoint.open(0)

    run(story)


def test_endpoint_canned_reply_and_system_prompt_of_a_rule(tmp_path: Path) -> None:
    prompt = tmp_path / "calm.j2"
    prompt.write_text("You are {{ model }} and calm.")
    rules = RoutingRules(
        (
            tagged("no", Action(kind=TargetKind.CANNED, target="", canned="Not now.")),
            tagged("calm", Action(system_prompt=prompt)),
        )
    )

    async def story(bench: EndpointBench) -> None:
        canned = await bench.chat(tags=["no"])
        assert canned.json()["choices"][0]["message"]["content"] == "Not now."
        assert json.loads(canned.headers["x-coolhead-decision"])["rule"] == "no"
        stream = await bench.chat(tags=["no"], stream=True)
        assert texts(stream.text) == ["Not now."]
        assert not bench.guard.launches
        plain = (await bench.chat("one two")).json()["usage"]["prompt_tokens"]
        calm = (await bench.chat("one two", tags=["calm"])).json()["usage"]["prompt_tokens"]
        assert calm == plain + 5
        prompt.unlink()
        broken = await bench.chat(tags=["calm"])
        assert broken.status_code == 400
        assert "calm.j2" in broken.json()["error"]["message"]

    run(story, RoutingRules(rules.rules))


def test_endpoint_chat_template_of_a_rule_makes_the_prompt(tmp_path: Path) -> None:
    template = tmp_path / "plain.j2"
    template.write_text("{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<me>")

    async def story(bench: EndpointBench) -> None:
        whole = (await bench.chat("one two", tags=["plain"])).json()
        assert whole["object"] == "chat.completion"
        assert whole["choices"][0]["message"]["content"].startswith("cool ")
        assert whole["usage"]["prompt_tokens"] == 4  # <user> one two <me>
        stream = await bench.chat("one two", tags=["plain"], stream=True)
        assert len(texts(stream.text)) == 5
        first = json.loads(stream.text.splitlines()[0][6:])
        assert first["object"] == "chat.completion.chunk"
        assert first["choices"][0]["delta"]["role"] == "assistant"
        assert stream.text.endswith("data: [DONE]\n\n")

    run(story, RoutingRules((tagged("plain", Action(chat_template=template)),)))


def test_endpoint_response_cache_answers_equal_requests_where_a_rule_says_so() -> None:
    rules = RoutingRules((tagged("keep", Action(cache=CachePolicy(60.0))),))

    async def story(bench: EndpointBench) -> None:
        first = await bench.chat("same", tags=["keep"])
        again = await bench.chat("same", tags=["keep"])
        assert again.headers["x-coolhead-cache"] == "hit"
        assert again.content == first.content
        assert "x-coolhead-cache" not in (await bench.chat("other", tags=["keep"])).headers
        assert "x-coolhead-cache" not in (await bench.chat("same")).headers
        stream = await bench.chat("same", tags=["keep"], stream=True)
        kept = await bench.chat("same", tags=["keep"], stream=True)
        assert kept.headers["x-coolhead-cache"] == "hit"
        assert kept.content == stream.content
        metrics = (await bench.client.get("/metrics")).text
        assert "coolhead_cache_hits_total 2.0" in metrics

    run(story, rules)


def test_endpoint_limit_ends_the_answer_properly_and_says_which() -> None:
    async def story(bench: EndpointBench) -> None:
        many = body(stream=True, max_tokens=2000)
        answer = await bench.client.post(CHAT, json=many)
        assert len(texts(answer.text)) == 20
        chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if "{" in line]
        assert chunks[-2]["coolhead"]["limit"] == "max_tokens"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert answer.text.endswith("data: [DONE]\n\n")
        whole = (await bench.chat(max_tokens=2000)).json()
        assert whole["usage"]["completion_tokens"] == 20
        await until(lambda: bench.endpoint.in_flight == 0)

    run(story, settings={"limits.max_tokens": 20})


def test_endpoint_runaway_repetition_is_ended() -> None:
    async def story(bench: EndpointBench) -> None:
        answer = await bench.client.post(CHAT, json=body(stream=True, max_tokens=5000))
        assert '"limit":"repetition"' in answer.text
        assert len(texts(answer.text)) < 1000

    run(story, options={"token_s": "0"})


def test_endpoint_headers_are_held_and_then_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "HEADERS_HELD_S", 0.1)

    async def story(bench: EndpointBench) -> None:
        async with bench.client.stream("POST", CHAT, json=body(stream=True)) as answer:
            assert answer.status_code == 200
            assert not bench.endpoint.model("m").slots > 2
            assert bench.endpoint.queued == 1  # the model is being loaded still
            text = (await answer.aread()).decode()
        assert len(texts(text)) == 5

    run(story, options={"load_s": "1.0"})


def test_endpoint_load_that_fails_after_the_headers_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(job, "HEADERS_HELD_S", 0.1)

    async def story(bench: EndpointBench) -> None:
        with pytest.raises(httpx2.TransportError):
            await bench.chat(stream=True)  # agents try again on a reset, not on a clean end

    run(story, options={"load_s": "0.5", "fail": "no luck"})


def test_endpoint_metrics_and_log_tell_of_requests_without_their_content(tmp_path: Path) -> None:
    async def story(bench: EndpointBench) -> None:
        await bench.chat("a secret word")
        await bench.chat("a secret word", stream=True)
        await bench.chat(model="nonesuch")
        metrics = (await bench.client.get("/metrics")).text
        assert 'coolhead_requests_total{outcome="ok"} 2.0' in metrics
        assert 'coolhead_requests_total{outcome="model_not_found"} 1.0' in metrics
        assert 'coolhead_tokens_total{kind="completion",model="m"} 10.0' in metrics
        assert 'coolhead_in_flight{model="m"} 0.0' in metrics

    run(story, log_folder=tmp_path)
    text = (tmp_path / "requests.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["status"] for line in lines] == [200, 200, 404]
    assert lines[1]["ttft_ms"] > 0
    assert "secret" not in text


def test_endpoint_reload_under_load_loses_no_request_and_shows_no_half_table() -> None:
    def rules(name: str) -> RoutingRules:
        action = Action(kind=TargetKind.CANNED, target="", canned=name)
        return RoutingRules((Rule(name, Conditions(), action),))

    async def story(bench: EndpointBench) -> None:
        bench.use(rules("one"))
        answers: list[httpx2.Response] = []

        async def ask() -> None:
            while len(answers) < 200:
                answers.append(await bench.chat(f"hello {len(answers)}"))

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(ask()) for _ in range(20)]
            count = 0
            while not all(task.done() for task in asking):
                count += 1
                bench.use(rules("two" if count % 2 else "one"))
                await asyncio.sleep(0)
        assert count > 5
        for answer in answers:
            said = answer.json()["choices"][0]["message"]["content"]
            assert said == json.loads(answer.headers["x-coolhead-decision"])["rule"]

    run(story)


def test_endpoint_reload_tells_of_doubtful_rules_and_a_bad_file_changes_nothing(
    tmp_path: Path,
) -> None:
    async def story(bench: EndpointBench) -> None:
        path = tmp_path / "routes.yaml"
        path.write_text(
            "rules:\n"
            "  - name: all\n    then: {reply: One.}\n"
            "  - name: never\n    when: {has_tools: true}\n    then: {reply: Two.}\n"
        )
        bench.router.path = path
        assert await bench.endpoint.reload_routes() == 2
        told = [event for event in bench.events if isinstance(event, RoutesReloaded)]
        assert any("never" in problem or "all" in problem for problem in told[-1].problems)
        assert "One." in (await bench.chat()).text
        path.write_text("rules: 5\n")
        with pytest.raises(RoutesInvalid):
            await bench.endpoint.reload_routes()
        assert "One." in (await bench.chat()).text

    run(story)


class OneAtATime(FakePlanner):
    """Room for one model."""

    def price(self, *args: Any, **named: Any) -> Priced:
        priced = super().price(*args, **named)
        used = self.live[-1].own_bytes + self.live[-1].mapped_bytes
        fit = Fit(used == 0, "RAM", 150 * MIB, 100 * MIB, 0, 100 * MIB, "One model at a time.")
        return replace(priced, fit=fit)


def test_endpoint_swap_storm_breaks_no_stream() -> None:
    async def story(bench: EndpointBench) -> None:
        bench.planner.__class__ = OneAtATime

        async def one(number: int) -> str:
            model = "mn"[number % 2]
            answer = await bench.chat(f"hello {number}", model=model, stream=True, max_tokens=20)
            assert answer.status_code == 200, answer.text
            assert answer.text.endswith("data: [DONE]\n\n")
            return model

        models = await asyncio.gather(*(one(number) for number in range(50)))
        assert models.count("m") == 25
        assert bench.endpoint.in_flight == 0
        assert len(bench.guard.launches) >= 2
        view = bench.supervisor.worker("m"), bench.supervisor.worker("n")
        ready = [one for one in view if one is not None and one.state is WorkerState.READY]
        assert len(ready) == 1

    run(story, settings={"queue.max_queue_size": 64}, options={"token_s": "0.002"})
