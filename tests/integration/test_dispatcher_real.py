"""The real openai client, the real engine and the real guard, through the endpoint."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.planner import Priced
from app.core.backends.supervisor import Supervisor
from app.core.events import EventBus
from app.core.handle import Command, Snapshot
from app.core.hardware.machine import Machine
from app.core.lifecycle import ExitCause
from app.core.models.fit import judge
from app.core.models.limits import Limits
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import plan_memory
from app.core.models.spec import ModelSpec, read_spec
from app.core.router.endpoint import Endpoint
from app.core.router.router import Router
from app.core.settings import Settings
from app.guard.client import GuardClient
from tests.fakes.fake_backends import until

pytestmark = pytest.mark.real
MIB = 1024 * 1024
LOAD = LoadSettings(context_tokens=1024, slots=2, threads=1, batch_tokens=128, ubatch_tokens=128)
ASKED: list[Any] = [{"role": "user", "content": "Count from one to one thousand in words."}]


class Planner:
    """The formula, for figures that are small on purpose."""

    def machine(self) -> Machine:
        memory = psutil.virtual_memory()
        return Machine(memory.total, memory.available)

    def price(self, spec: ModelSpec, *_: object) -> Priced:
        plan = plan_memory(spec, LOAD)
        machine = self.machine()
        return Priced(LOAD, plan, judge(plan, machine, Limits(512 * MIB)), machine)

    def record(self, *_: object) -> None:
        pass


class Folder:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, model_id: str) -> ModelSpec:
        return read_spec(self._folder / f"{model_id}.gguf", model_id)

    def specs(self) -> tuple[ModelSpec, ...]:
        return (self.find("smol"),)


class Bench:
    def __init__(self, folder: Path) -> None:
        bus = EventBus()
        library = Folder(folder)
        self.supervisor = Supervisor(
            guard=GuardClient,
            library=library,
            planner=Planner(),
            backends=[LlamaCppBackend()],
            events=bus,
            settings=Settings,
        )
        self.endpoint = Endpoint(
            workers=self.supervisor,
            library=library,
            router=Router.default(),
            events=bus,
            settings=Settings,
            snapshot=Snapshot,
            execute=self._execute,
            admin_token="token",
        )

    async def _execute(self, command: Command) -> object:
        return command

    def pid(self) -> int:
        view = self.supervisor.worker("smol")
        assert view is not None
        return view.pid


Story = Callable[[Bench, openai.AsyncOpenAI], Awaitable[None]]


def run(smollm2: Path, tmp_path: Path, story: Story) -> None:
    try:
        os.link(smollm2, tmp_path / "smol.gguf")
    except OSError:  # another file system
        shutil.copy(smollm2, tmp_path / "smol.gguf")

    async def tell() -> None:
        bench = Bench(tmp_path)
        await bench.supervisor.start()
        await bench.endpoint.open(0)
        try:
            async with (
                asyncio.timeout(120),
                openai.AsyncOpenAI(
                    base_url=bench.endpoint.url, api_key="none", max_retries=0
                ) as client,
            ):
                await story(bench, client)
        finally:
            await bench.endpoint.close(0.0)
            await bench.supervisor.stop_all(ExitCause.STOPPED_BY_USER)

    asyncio.run(tell())


def test_dispatcher_real_cold_model_answers_eight_at_once_and_lists_itself(
    smollm2: Path, tmp_path: Path
) -> None:
    async def story(bench: Bench, client: openai.AsyncOpenAI) -> None:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="auto",
                    messages=[{"role": "user", "content": f"Say {number}."}],
                    max_tokens=6,
                )
                for number in range(8)
            )
        )
        assert all(answer.usage and answer.usage.completion_tokens for answer in answers)
        ready = await bench.supervisor.ensure_ready("smol")
        assert ready.generation == 1
        listed = await client.models.list()
        assert [model.id for model in listed.data] == ["smol"]
        extra = listed.data[0].model_extra or {}
        assert extra["context_length"] == 1024
        assert bench.endpoint.in_flight == 0

    run(smollm2, tmp_path, story)


def test_dispatcher_real_requests_that_make_no_sense_are_the_clients_fault(
    smollm2: Path, tmp_path: Path
) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}

    async def story(bench: Bench, client: openai.AsyncOpenAI) -> None:
        for messages in ([{"role": "user", "content": [picture]}], [{"content": "no role"}]):
            asked: Any = messages
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="smol", messages=asked)
        warm: Any = "warm"
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="smol", messages=ASKED, temperature=warm)
        assert "Field 'temperature'" in refused.value.message
        assert "json.exception" not in refused.value.message
        with pytest.raises(openai.BadRequestError, match="makes no embeddings"):
            await client.embeddings.create(model="smol", input="x")
        # The engine's integers would wrap, to two tokens.
        answer = await client.chat.completions.create(
            model="smol", messages=ASKED, max_tokens=2**32 + 2, temperature=0, stop=[" "]
        )
        assert answer.choices[0].finish_reason == "stop"
        assert bench.endpoint.in_flight == 0

    run(smollm2, tmp_path, story)


def test_dispatcher_real_stream_cancel_and_overflow(smollm2: Path, tmp_path: Path) -> None:
    async def story(bench: Bench, client: openai.AsyncOpenAI) -> None:
        finish = None
        pieces = 0
        usage = None
        async for chunk in await client.chat.completions.create(
            model="smol",
            messages=ASKED,
            max_tokens=3,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces += bool(choice.delta.content)
                finish = choice.finish_reason or finish
        assert pieces > 1
        assert finish == "length"
        assert usage is not None
        stream = await client.chat.completions.create(
            model="smol", messages=ASKED, max_tokens=900, stream=True
        )
        async for _ in stream:
            break
        assert bench.endpoint.in_flight == 1
        await stream.close()
        await until(lambda: bench.endpoint.in_flight == 0, "the slot to be given back")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="smol", messages=[{"role": "user", "content": "word " * 3000}]
            )
        assert caught.value.code == "context_length_exceeded"
        assert "maximum context length is 1024" in str(caught.value)
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("nonesuch")

    run(smollm2, tmp_path, story)


def test_dispatcher_real_killed_worker_is_named_and_replaced(smollm2: Path, tmp_path: Path) -> None:
    async def story(bench: Bench, client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="smol", messages=ASKED, max_tokens=900, stream=True
        )
        first = bench.pid()

        async def read() -> None:
            is_due = True
            async for chunk in stream:
                if is_due and chunk.choices and chunk.choices[0].delta.content:
                    is_due = False
                    os.kill(first, signal.SIGKILL)

        with pytest.raises(openai.APIError, match="SIGKILL"):
            await read()
        answer = await client.chat.completions.create(
            model="smol", messages=[{"role": "user", "content": "Hello"}], max_tokens=4
        )
        assert answer.choices[0].message.content
        assert bench.pid() != first
        assert bench.endpoint.in_flight == 0

    run(smollm2, tmp_path, story)
