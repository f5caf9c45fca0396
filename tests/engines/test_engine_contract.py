"""What every engine must do, whoever wrote it; what it cannot, its capabilities say."""

import asyncio
import dataclasses
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from app.core.backends import engine_http
from app.core.backends.base import Backend
from app.core.backends.builds import InstalledBuild
from app.core.backends.engine_llama_cpp_python import LlamaCppPython
from app.core.backends.engine_llama_server import LlamaServer
from app.core.backends.engine_xllamacpp import Xllamacpp
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.mlx import MlxBackend
from app.core.errors import ModelFileInvalid, WorkerStartFailed
from app.core.events import WorkerStateChanged
from app.core.lifecycle import ExitCause, WorkerState
from app.core.models.load_settings import LoadSettings
from app.core.settings import Settings
from tests.engines.engine_bench import MIB, ask, bench, chat_body, first_piece
from tests.engines.fetch import BUILD_TIMEOUT_S, FETCH_TIMEOUT_S
from tests.fakes.fake_backends import until

pytestmark = pytest.mark.real
LOAD = LoadSettings(context_tokens=1024, slots=2, threads=1, batch_tokens=128, ubatch_tokens=128)
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class UnderTest:
    backend: Backend
    model: Path
    load: LoadSettings = LOAD
    answer_tokens: int = 24


@pytest.fixture(
    params=[
        "xllamacpp",
        "llama-server",
        # The first of these waits for pip, or for the compiler; what follows is bounded by the bench.
        pytest.param("mlx", marks=pytest.mark.timeout(FETCH_TIMEOUT_S * 2)),
        pytest.param("llama-cpp-python", marks=pytest.mark.timeout(BUILD_TIMEOUT_S + 300)),
    ]
)
def engine(request: pytest.FixtureRequest, smollm2: Path) -> UnderTest:
    if request.param == "mlx":
        backend = MlxBackend(request.getfixturevalue("mlx_folder"))
        return UnderTest(backend, request.getfixturevalue("smollm2_mlx"), LOAD, 8)
    if request.param == "xllamacpp":
        return UnderTest(LlamaCppBackend(engines=[Xllamacpp()]), smollm2)
    if request.param == "llama-cpp-python":
        folder = request.getfixturevalue("llama_cpp_python")
        build = InstalledBuild(request.param, request.param, "", folder)
        one_slot = dataclasses.replace(LOAD, slots=1)
        return UnderTest(LlamaCppBackend(engines=[LlamaCppPython(build)]), smollm2, one_slot)
    program = request.getfixturevalue("llama_server")
    settings = Settings().replace({"engine.llama_server": str(program)})
    return UnderTest(LlamaCppBackend(engines=[LlamaServer(lambda: settings)]), smollm2)


def test_engine_loads_answers_streams_and_leaves_nothing(engine: UnderTest) -> None:
    async def story() -> None:
        async with bench(engine.backend, {"m": engine.model}, engine.load) as made:
            worker = await made.supervisor.ensure_ready("m")
            assert (worker.context_tokens, worker.slots) == (
                engine.load.context_tokens,
                engine.load.slots,
            )
            states = [e.state for e in made.events if isinstance(e, WorkerStateChanged)]
            assert states == [WorkerState.STARTING, WorkerState.READY]

            answer = await ask(
                worker, CHAT, chat_body("Why is the sky blue?", engine.answer_tokens)
            )
            assert answer.status == 200
            assert answer.data["model"] == "m"
            assert any(word in answer.text.lower() for word in ("sky", "blue", "light"))
            assert answer.data["usage"]["completion_tokens"] > 0

            stream = await ask(worker, CHAT, chat_body("Say hello.", 8, stream=True))
            assert stream.status == 200
            assert re.search(rb'"model": ?"m"', stream.body)
            assert stream.body.count(b"data: {") >= 2
            assert stream.body.rstrip().endswith(b"data: [DONE]")

            view = made.supervisor.worker("m")
            assert view is not None
            await made.supervisor.unload("m", ExitCause.UNLOADED)
            assert not psutil.pid_exists(view.pid)
            assert await engine_http.get(worker.port, "/health", worker.key) is None

    asyncio.run(story())


def test_engine_without_the_key_answers_nobody(engine: UnderTest) -> None:
    async def story() -> None:
        async with bench(engine.backend, {"m": engine.model}, engine.load) as made:
            worker = await made.supervisor.ensure_ready("m")
            for key in ("", "wrong"):
                answer = await ask(worker, CHAT, chat_body("Hello", 4), key)
                assert answer.status in {401, 403}
            view = made.supervisor.worker("m")
            assert view is not None
            process = psutil.Process(view.pid)
            assert worker.key not in " ".join(process.cmdline())
            assert worker.key not in " ".join(process.environ().values())

    asyncio.run(story())


def test_engine_client_leaves_and_the_slot_is_free_again(engine: UnderTest) -> None:
    async def story() -> None:
        async with bench(engine.backend, {"m": engine.model}, engine.load) as made:
            worker = await made.supervisor.ensure_ready("m")
            for _ in range(engine.load.slots):
                writer = await first_piece(
                    worker, chat_body("Count to a thousand.", 900, stream=True, ignore_eos=True)
                )
                writer.close()
            if worker.capabilities.reports_slots:
                async with asyncio.timeout(20):
                    while await _is_busy(worker.port, worker.key):  # noqa: ASYNC110 - asked over HTTP
                        await asyncio.sleep(0.1)
            async with asyncio.timeout(60):
                answer = await ask(worker, CHAT, chat_body("Say hello.", 4))
            assert answer.status == 200

    asyncio.run(story())


async def _is_busy(port: int, key: str) -> bool:
    reply = await engine_http.get(port, "/slots", key)
    assert reply is not None
    return b'"is_processing":true' in reply.body.replace(b" ", b"")


def test_engine_prompt_beyond_the_context_is_a_400(engine: UnderTest) -> None:
    async def story() -> None:
        async with bench(engine.backend, {"m": engine.model}, engine.load) as made:
            worker = await made.supervisor.ensure_ready("m")
            answer = await ask(worker, CHAT, chat_body("word " * 3000, 4))
            assert answer.status == 400
            if worker.capabilities.counts_tokens:
                assert answer.data["error"]["n_ctx"] == engine.load.context_tokens
                tokens = await ask(worker, "/tokenize", {"content": "one two three"})
                assert len(tokens.data["tokens"]) >= 3
            assert (await ask(worker, CHAT, chat_body("Hello", 4))).status == 200

    asyncio.run(story())


def test_engine_two_at_once_are_answered_side_by_side_and_within_the_plan(
    engine: UnderTest,
) -> None:
    async def story() -> None:
        async with bench(engine.backend, {"m": engine.model}, engine.load) as made:
            worker = await made.supervisor.ensure_ready("m")
            answers = await asyncio.gather(
                *(
                    ask(worker, CHAT, chat_body(f"Write about {n}.", engine.answer_tokens))
                    for n in range(4)
                )
            )
            assert [answer.status for answer in answers] == [200] * 4
            await until(lambda: bool(made.planner.taken_bytes))
            planned = made.planner.planned_bytes["RAM"]
            assert 0 < made.planner.taken_bytes["RAM"] <= planned + 64 * MIB
            view = made.supervisor.worker("m")
            assert view is not None
            assert view.own_bytes <= view.cap_bytes

    asyncio.run(story())


def test_engine_damaged_file_fails_in_words(engine: UnderTest, tmp_path: Path) -> None:
    hurt = tmp_path / ("hurt" if engine.model.is_dir() else "hurt.gguf")
    if engine.model.is_dir():
        shutil.copytree(engine.model, hurt)
        rename_in(hurt / "model.safetensors", b"model.layers.0.self_attn.k_proj")
    else:
        shutil.copy(engine.model, hurt)
        rename_in(hurt, b"blk.0.attn_k.weight")

    async def story() -> None:
        async with bench(engine.backend, {"m": hurt}, engine.load) as made:
            with pytest.raises((WorkerStartFailed, ModelFileInvalid)) as caught:
                await made.supervisor.ensure_ready("m")
            assert re.search(r"attn_k|k_proj", str(caught.value))

    asyncio.run(story())


def rename_in(file: Path, name: bytes) -> None:
    """A tensor that the engine looks for is there under another name."""
    data = bytearray(file.read_bytes())
    at = data.index(name)
    data[at : at + 3] = b"xxx"
    file.write_bytes(data)


@pytest.mark.parametrize("victim", ["guard", "worker"])
def test_engine_dies_with_its_parent_and_when_killed(engine: UnderTest, victim: str) -> None:
    async def story() -> None:
        async with bench(engine.backend, {"m": engine.model}, engine.load) as made:
            worker = await made.supervisor.ensure_ready("m")
            view = made.supervisor.worker("m")
            assert view is not None
            why = made.supervisor.worker_exit(worker.worker_id)
            os.kill(made.supervisor.guard.pid if victim == "guard" else view.pid, signal.SIGKILL)
            exited = await asyncio.wait_for(why, 20)
            wanted = ExitCause.GUARD_LOST if victim == "guard" else ExitCause.UNKNOWN
            assert exited.cause is wanted
            await until(lambda: not psutil.pid_exists(view.pid), "the worker's end")

    asyncio.run(story())
