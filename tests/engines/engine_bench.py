"""A supervisor with the real guard around one engine, and a small client for what it serves."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from app.core.backends.base import Backend
from app.core.backends.planner import EngineUse, Live, Priced
from app.core.backends.supervisor import ReadyWorker, Supervisor
from app.core.events import Event, EventBus
from app.core.hardware.machine import Machine
from app.core.hardware.probe import probe_machine
from app.core.lifecycle import ExitCause
from app.core.models.fit import judge
from app.core.models.limits import Limits
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import plan_memory
from app.core.models.spec import ModelSpec, read_spec
from app.core.settings import Settings
from app.guard.client import GuardClient

MIB = 1024 * 1024


class FormulaPlanner:
    """Plans `load` by the formula, for the GPUs named; no presets, no dry run."""

    def __init__(self, load: LoadSettings, gpus: Sequence[str] = ()) -> None:
        self.load = load
        self.gpus = gpus
        self.planned_bytes: dict[str, int] = {}
        self.taken_bytes: dict[str, int] = {}

    def machine(self) -> Machine:
        memory = psutil.virtual_memory()
        return Machine(memory.total, memory.available)

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        machine = probe_machine(engine.devices) if self.gpus else self.machine()
        plan = plan_memory(spec, self.load, self.gpus)
        fit = judge(plan, machine, Limits(512 * MIB), live.mapped_bytes, live.own_bytes)
        return Priced(self.load, plan, fit, machine)

    def record(
        self, spec: ModelSpec, priced: Priced, taken_bytes: Mapping[str, int], engine: EngineUse
    ) -> None:
        self.planned_bytes = {part.device: part.total_bytes for part in priced.plan.devices}
        self.taken_bytes = dict(taken_bytes)


class Files:
    """A library of what a test names."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = paths

    def find(self, model_id: str) -> ModelSpec:
        path = self._paths[model_id]
        if path.is_dir():
            from app.core.models.mlx_folder import read_mlx_spec

            return read_mlx_spec(path, model_id)
        return read_spec(path, model_id)


@dataclass
class EngineBench:
    supervisor: Supervisor
    planner: FormulaPlanner
    events: list[Event] = field(default_factory=list)


@asynccontextmanager
async def bench(
    backend: Backend,
    paths: Mapping[str, Path],
    load: LoadSettings,
    gpus: Sequence[str] = (),
    bound_s: float = 240.0,
) -> AsyncIterator[EngineBench]:
    bus = EventBus()
    planner = FormulaPlanner(load, gpus)
    supervisor = Supervisor(
        guard=GuardClient,
        library=Files(paths),
        planner=planner,
        backends=[backend],
        events=bus,
        settings=Settings,
    )
    made = EngineBench(supervisor, planner)
    bus.subscribe(made.events.append)
    await supervisor.start()
    try:
        async with asyncio.timeout(bound_s):
            yield made
    finally:
        await supervisor.stop_all(ExitCause.STOPPED_BY_USER)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def text(self) -> str:
        return str(self.data["choices"][0]["message"]["content"])


def chat_body(text: str, max_tokens: int, **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": max_tokens, "temperature": 0.0, **more}


async def ask(
    worker: ReadyWorker, path: str, data: object | None = None, key: str | None = None
) -> Answer:
    """One request to the engine itself."""
    reader, writer = await _send(worker, path, data, key)
    try:
        raw = await reader.read()
    finally:
        writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    return Answer(int(head.split()[1]), _unchunked(head, body))


async def first_piece(worker: ReadyWorker, data: object) -> asyncio.StreamWriter:
    """Starts a stream, reads until some of it has come, and leaves it open."""
    reader, writer = await _send(worker, "/v1/chat/completions", data, None)
    seen = b""
    while b"data:" not in seen.partition(b"\r\n\r\n")[2]:
        piece = await reader.read(4096)
        assert piece, seen
        seen += piece
    return writer


async def _send(
    worker: ReadyWorker, path: str, data: object | None, key: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = b"" if data is None else json.dumps(data).encode()
    reader, writer = await asyncio.open_connection(worker.host, worker.port)
    writer.write(
        f"{'GET' if data is None else 'POST'} {path} HTTP/1.1\r\n"
        f"Host: {worker.host}:{worker.port}\r\nConnection: close\r\n"
        f"Authorization: Bearer {worker.key if key is None else key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return reader, writer


def _unchunked(head: bytes, body: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    whole = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            break
        whole += body[:length]
        body = body[length + 2 :]
    return whole
