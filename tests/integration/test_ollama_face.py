"""The Ollama face on a whole endpoint: what editors ask and read, on real sockets."""

import json
from typing import Any

from app.core.router.rules import RoutingRules
from tests.fakes.endpoint_bench import EndpointBench, run

ASKED: dict[str, Any] = {"model": "m:latest", "messages": [{"role": "user", "content": "hi"}]}


def test_ollama_pages_are_answered() -> None:
    async def story(bench: EndpointBench) -> None:
        assert "version" in (await bench.client.get("/api/version")).json()
        names = [model["name"] for model in (await bench.client.get("/api/tags")).json()["models"]]
        assert names == ["m:latest", "n:latest", "o:latest"]
        assert (await bench.client.get("/api/ps")).json() == {"models": []}
        told = (await bench.client.post("/api/show", json={"model": "m:latest"})).json()
        assert told["capabilities"][0] == "completion"
        await bench.load()
        (loaded,) = (await bench.client.get("/api/ps")).json()["models"]
        assert loaded["context_length"] == 4096

    run(story)


def test_ollama_errors_are_a_plain_sentence() -> None:
    async def story(bench: EndpointBench) -> None:
        answer = await bench.client.post("/api/show", json={"name": "zzz"})
        assert answer.status_code == 404
        assert "zzz" in answer.json()["error"]
        answer = await bench.client.post("/api/chat", json={**ASKED, "model": "zzz"})
        assert answer.status_code == 404
        assert isinstance(answer.json()["error"], str)
        assert (await bench.client.post("/api/tags", json={})).status_code == 405
        assert (await bench.client.post("/api/chat", json=[])).status_code == 400

    run(story)


def test_ollama_chat_streams_lines_and_ends_with_counts() -> None:
    async def story(bench: EndpointBench) -> None:
        answer = await bench.client.post(
            "/api/chat", json={**ASKED, "options": {"num_predict": 5, "num_ctx": 32768}}
        )
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert all(not line["done"] for line in lines[:-1])
        assert "".join(line["message"]["content"] for line in lines)
        assert lines[-1]["done"] is True
        assert lines[-1]["model"] == "m:latest"

    run(story)


def test_ollama_answers_whole_where_asked() -> None:
    async def story(bench: EndpointBench) -> None:
        answer = await bench.client.post("/api/chat", json={**ASKED, "stream": False})
        assert answer.status_code == 200
        told = answer.json()
        assert told["message"]["content"]
        assert told["done"] is True
        generated = await bench.client.post(
            "/api/generate", json={"model": "m", "prompt": "hi", "stream": False}
        )
        assert generated.json()["response"]

    run(story, RoutingRules())
