"""The supervisor with the real guard, the real engine and a real model."""

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import psutil
import pytest

from app.core.backends import engine_http
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.planner import EngineUse, Live, Priced
from app.core.backends.supervisor import Supervisor
from app.core.errors import ModelFileInvalid, WorkerStartFailed, WorkerStopped
from app.core.events import Event, EventBus, LoadProgressed, WorkerExited
from app.core.hardware.machine import Machine
from app.core.lifecycle import CapKind, ExitCause, WorkerState
from app.core.models.fit import judge
from app.core.models.limits import Limits
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import plan_memory
from app.core.models.spec import ModelSpec, read_spec
from app.core.settings import Settings
from app.guard.client import GuardClient
from tests.fakes.fake_backends import until

pytestmark = pytest.mark.real
MIB = 1024 * 1024
LOAD = LoadSettings(context_tokens=1024, slots=2, threads=1, batch_tokens=128, ubatch_tokens=128)


class Planner:
    """The formula and the rule, for figures that are small on purpose."""

    def __init__(self) -> None:
        self.taken: list[Mapping[str, int]] = []
        self.planned_bytes = 0

    def machine(self) -> Machine:
        memory = psutil.virtual_memory()
        return Machine(memory.total, memory.available)

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        plan = plan_memory(spec, LOAD)
        machine = self.machine()
        fit = judge(plan, machine, Limits(512 * MIB), live.mapped_bytes, live.own_bytes)
        return Priced(LOAD, plan, fit, machine)

    def record(
        self, spec: ModelSpec, priced: Priced, taken_bytes: Mapping[str, int], engine: EngineUse
    ) -> None:
        self.planned_bytes = priced.plan.own_bytes + priced.plan.mapped_bytes
        self.taken.append(taken_bytes)


class Folder:
    """A library of one folder, which looks at a file's header when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, model_id: str) -> ModelSpec:
        return read_spec(self._folder / f"{model_id}.gguf", model_id)


class Bench:
    def __init__(self, folder: Path) -> None:
        self.events: list[Event] = []
        bus = EventBus()
        bus.subscribe(self.events.append)
        self.planner = Planner()
        self.supervisor = Supervisor(
            guard=GuardClient,
            library=Folder(folder),
            planner=self.planner,
            backends=[LlamaCppBackend()],
            events=bus,
            settings=Settings,
        )


@pytest.fixture
def folder(smollm2: Path, tmp_path: Path) -> Path:
    try:
        os.link(smollm2, tmp_path / "smol.gguf")
    except OSError:  # another file system
        shutil.copy(smollm2, tmp_path / "smol.gguf")
    return tmp_path


def run(folder: Path, story: Callable[[Bench], Awaitable[None]]) -> Bench:
    async def told() -> Bench:
        bench = Bench(folder)
        await bench.supervisor.start()
        try:
            async with asyncio.timeout(120):
                await story(bench)
        finally:
            await bench.supervisor.stop_all(ExitCause.STOPPED_BY_USER)
        return bench

    return asyncio.run(told())


async def chat(port: int, key: str, text: str, max_tokens: int = 8) -> dict[str, object]:
    body = json.dumps(
        {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens}
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    data = await reader.read()
    writer.close()
    answer: dict[str, object] = json.loads(data.partition(b"\r\n\r\n")[2])
    return answer


def test_worker_real_model_loads_once_for_eight_answers_and_leaves_nothing(folder: Path) -> None:
    pids: list[int] = []

    async def story(bench: Bench) -> None:
        found = await asyncio.gather(*(bench.supervisor.ensure_ready("smol") for _ in range(8)))
        assert {ready.worker_id for ready in found} == {"smol:1"}
        ready = found[0]
        assert (ready.context_tokens, ready.slots) == (1024, 2)
        view = bench.supervisor.worker("smol")
        assert view is not None
        assert view.cap is not None
        pids.extend((view.pid, bench.supervisor.guard.pid))
        assert psutil.Process(view.pid).ppid() == bench.supervisor.guard.pid
        assert ready.key not in " ".join(psutil.Process(view.pid).cmdline())
        assert ready.key not in str(psutil.Process(view.pid).environ())
        assert view.cap.kind in CapKind
        if view.cap.kind is not CapKind.WATCH_ONLY:
            assert view.cap.limit_bytes >= view.cap_bytes
        answers = await asyncio.gather(
            *(chat(ready.port, ready.key, f"Say {n}.") for n in range(8))
        )
        assert all("choices" in answer for answer in answers)
        assert "error" in await chat(ready.port, "wrong", "Hello")
        await until(lambda: bool(bench.planner.taken))
        taken, planned = bench.planner.taken[0]["RAM"], bench.planner.planned_bytes
        assert 0 < taken < planned + 64 * MIB, f"took {taken // MIB}, planned {planned // MIB} MiB"
        await bench.supervisor.unload("smol", ExitCause.UNLOADED)
        assert not psutil.pid_exists(view.pid)
        assert await engine_http.get(ready.port, "/health", "") is None

    bench = run(folder, story)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    ends = [event for event in bench.events if isinstance(event, WorkerExited)]
    assert [end.cause for end in ends] == [ExitCause.UNLOADED]
    assert all(
        event.planned_bytes > 0 for event in bench.events if isinstance(event, LoadProgressed)
    )


def test_worker_real_killed_from_outside_names_the_signal_and_is_replaced(folder: Path) -> None:
    async def story(bench: Bench) -> None:
        ready = await bench.supervisor.ensure_ready("smol")
        view = bench.supervisor.worker("smol")
        assert view is not None
        why = bench.supervisor.worker_exit(ready.worker_id)
        os.kill(view.pid, signal.SIGKILL)
        exited = await asyncio.wait_for(why, 20)
        assert exited.cause is ExitCause.UNKNOWN
        assert "SIGKILL" in exited.sentence
        assert exited.evidence.exit_signal == signal.SIGKILL
        again = await bench.supervisor.ensure_ready("smol")
        assert again.generation == 2
        assert "choices" in await chat(again.port, again.key, "Hello")

    run(folder, story)


def test_worker_real_guard_killed_takes_its_workers_and_comes_back(folder: Path) -> None:
    async def story(bench: Bench) -> None:
        ready = await bench.supervisor.ensure_ready("smol")
        view = bench.supervisor.worker("smol")
        assert view is not None
        why = bench.supervisor.worker_exit(ready.worker_id)
        os.kill(bench.supervisor.guard.pid, signal.SIGKILL)
        exited = await asyncio.wait_for(why, 20)
        assert exited.cause is ExitCause.GUARD_LOST
        await until(lambda: not psutil.pid_exists(view.pid), "the worker's end")
        again = await bench.supervisor.ensure_ready("smol")
        assert "choices" in await chat(again.port, again.key, "Hello")

    run(folder, story)


def test_worker_real_damaged_file_is_told_in_words(folder: Path, smollm2: Path) -> None:
    data = smollm2.read_bytes()
    (folder / "cut.gguf").write_bytes(data[: len(data) // 2])
    (folder / "text.gguf").write_bytes(b"This is no model.")
    # A header that says the right things about a tensor type that no engine knows.
    hurt = bytearray(data)
    at = data.index(b"blk.0.attn_k.weight")
    hurt[at : at + 5] = b"xxx.0"
    (folder / "hurt.gguf").write_bytes(hurt)

    async def story(bench: Bench) -> None:
        for model_id in ("cut", "text"):
            with pytest.raises((ModelFileInvalid, WorkerStartFailed)) as caught:
                await bench.supervisor.ensure_ready(model_id)
            assert model_id in caught.value.message
        with pytest.raises((ModelFileInvalid, WorkerStartFailed)) as caught:
            await bench.supervisor.ensure_ready("hurt")
        if isinstance(caught.value, WorkerStartFailed):
            assert "attn_k" in caught.value.message
            view = bench.supervisor.worker("hurt")
            assert view is not None
            assert view.state is WorkerState.FAILED

    run(folder, story)


def test_worker_real_stopped_in_mid_load_is_gone_at_once(folder: Path) -> None:
    async def story(bench: Bench) -> None:
        load = asyncio.create_task(bench.supervisor.ensure_ready("smol"))
        await until(lambda: (view := bench.supervisor.worker("smol")) is not None and view.pid > 0)
        view = bench.supervisor.worker("smol")
        assert view is not None
        await bench.supervisor.unload("smol", ExitCause.STOPPED_BY_USER)
        assert not psutil.pid_exists(view.pid)
        with pytest.raises(WorkerStopped):
            await load

    run(folder, story)
