"""Stand-ins for what the supervisor works with: a guard without caps, a backend, planner, library.

The guard starts real processes (the fake engine), so that pipes, exits and kills are real.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from app.core.backends.base import Capabilities, EngineInfo, LaunchPlan
from app.core.backends.caps import caps_for
from app.core.backends.engines.link import StartLine
from app.core.backends.guard_link import GuardMessage
from app.core.backends.planner import EngineUse, Live, Priced
from app.core.errors import GuardError, ModelUnknown
from app.core.hardware.engine_devices import EngineDevice
from app.core.hardware.machine import Machine
from app.core.lifecycle import CapKind, ExitCause, PressureLevel
from app.core.models.fit import Fit
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import DevicePlan, MemoryPlan
from app.core.models.spec import ModelSpec
from app.core.settings import Settings
from app.guard.protocol import (
    Activity,
    CapReport,
    Evidence,
    Exited,
    Launch,
    Launched,
    Ready,
    Samples,
    WorkerSample,
)

MIB = 1024 * 1024
FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
KEY = "fake-key"


@dataclass(frozen=True, slots=True)
class FakeLaunched:
    message: Launched
    pidfd: int


class FakeGuard:
    """Starts processes from this one, reaps them, and says what it was told to say."""

    made: ClassVar[list["FakeGuard"]] = []  # newest last; cleared by each test that looks

    def __init__(
        self, on_message: Callable[[GuardMessage], None], on_lost: Callable[[str], None]
    ) -> None:
        self.on_message = on_message
        self.on_lost = on_lost
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.causes: dict[str, tuple[ExitCause, str]] = {}
        self.launches: list[Launch] = []
        self.activities: list[Activity] = []
        self.reapers: set[asyncio.Task[None]] = set()
        self.start_error = ""
        FakeGuard.made.append(self)

    @property
    def pid(self) -> int:
        return os.getpid()

    async def start(self) -> Ready:
        if self.start_error:
            raise GuardError(self.start_error)
        return Ready(self.pid, CapKind.WATCH_ONLY)

    async def launch(
        self, launch: Launch, stdin_fd: int, stdout_fd: int, stderr_fd: int
    ) -> FakeLaunched:
        self.launches.append(launch)
        process = subprocess.Popen(  # noqa: ASYNC220 - a test's loop may wait for a fork
            launch.argv,
            env={**os.environ, **launch.env},
            cwd=launch.cwd,
            stdin=stdin_fd,
            stdout=stdout_fd,
            stderr=stderr_fd,
        )
        self.processes[launch.worker_id] = process
        task = asyncio.get_running_loop().create_task(self._reap(launch.worker_id, process))
        self.reapers.add(task)
        task.add_done_callback(self.reapers.discard)
        cap = CapReport(CapKind.WATCH_ONLY, 0, False)
        return FakeLaunched(Launched(launch.worker_id, process.pid, 0.0, cap), -1)

    async def kill(self, worker_id: str, cause: ExitCause, note: str = "") -> Exited | None:
        self.causes[worker_id] = (cause, note or cause.value)
        self.processes[worker_id].kill()
        return None

    def kill_for(self, worker_id: str, cause: ExitCause, sentence: str) -> None:
        """As the guard's own decision."""
        self.causes[worker_id] = (cause, sentence)
        self.processes[worker_id].kill()

    def lose(self, reason: str = "test") -> None:
        """The guard dies, and its workers with it."""
        for process in self.processes.values():
            process.kill()
        for task in list(self.reapers):
            task.cancel()
        for process in self.processes.values():
            process.wait()
        self.on_lost(reason)

    def sample(self, worker_id: str, resident_bytes: int, available_bytes: int = 0) -> None:
        sample = WorkerSample(worker_id, 0.0, resident_bytes, 0, 0, resident_bytes)
        self.on_message(Samples(0.0, available_bytes, 16 << 30, 0, PressureLevel.NORMAL, [sample]))

    def send_activity(
        self, worker_id: str, *, is_loading: bool, in_flight: int, last_used_s: float
    ) -> None:
        self.activities.append(Activity(worker_id, is_loading, in_flight, last_used_s))

    def send_done(self, verdict_id: int, *, ok: bool, note: str = "") -> None:
        pass

    async def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        if self.reapers:
            await asyncio.wait(self.reapers)

    async def _reap(self, worker_id: str, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:  # noqa: ASYNC110 - a process sets no event
            await asyncio.sleep(0.005)
        code = process.returncode
        cause, sentence = self.causes.get(worker_id, (ExitCause.EXITED, f"It left with {code}."))
        if worker_id not in self.causes and code < 0:
            cause, sentence = ExitCause.CRASHED, f"Signal {signal.Signals(-code).name}."
        evidence = Evidence(
            exit_code=code if code >= 0 else None, exit_signal=-code if code < 0 else None
        )
        self.on_message(Exited(worker_id, process.pid, cause, sentence, evidence))


@dataclass
class FakeBackend:
    """Starts the fake engine; `options` are its switches, taken at each `prepare`."""

    options: dict[str, str] = field(default_factory=dict)
    prepared: list[LoadSettings] = field(default_factory=list)
    name: str = "fake"
    runs: bool = True

    def engines(self) -> tuple[EngineInfo, ...]:
        return (EngineInfo("fake", "1"),)

    def can_run(self, spec: ModelSpec) -> bool:
        return self.runs

    def engine_for(self, spec: ModelSpec) -> EngineInfo:
        return EngineInfo("fake", "1")

    def devices(self, engine: EngineInfo) -> tuple[EngineDevice, ...] | None:
        return None

    def prepare(self, spec: ModelSpec, settings: LoadSettings, plan: MemoryPlan) -> LaunchPlan:
        self.prepared.append(settings)
        start = StartLine(spec.model_id, str(spec.path), KEY, settings, dict(self.options))
        return LaunchPlan(
            model_id=spec.model_id,
            argv=(sys.executable, str(FAKE_ENGINE)),
            env={},
            stdin=start.encode(),
            key=KEY,
            caps=caps_for(plan, settings),
            plan=plan,
            settings=settings,
            engine=EngineInfo("fake", "1"),
            capabilities=Capabilities(),
        )


@dataclass
class FakePlanner:
    """Says what it is told; `steps` has the steps of each price that was asked for."""

    fits: bool = True
    most_bytes: int = -1
    load: LoadSettings = field(default_factory=lambda: LoadSettings(context_tokens=4096, slots=2))
    available_bytes: int = 8 << 30
    steps: list[int] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    records: list[dict[str, int]] = field(default_factory=list)

    def machine(self) -> Machine:
        return Machine(16 << 30, self.available_bytes)

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        self.steps.append(steps)
        self.live.append(live)
        ram = DevicePlan("RAM", weights_bytes=50 * MIB, kv_bytes=100 * MIB)
        plan = MemoryPlan((ram,), 100 * MIB, 50 * MIB, "formula", 10.0)
        sizes = (150 * MIB, 140 * MIB, 20 * MIB, 120 * MIB)
        fit = Fit(self.fits, "RAM", *sizes, "RAM is small.", self.most_bytes)
        return Priced(self.load, plan, fit, self.machine(), way_out="Take less context.")

    def record(
        self, spec: ModelSpec, priced: Priced, taken_bytes: Mapping[str, int], engine: EngineUse
    ) -> None:
        self.records.append(dict(taken_bytes))


class FakeLibrary:
    """Knows "m", "n" and "o"."""

    def find(self, model_id: str) -> ModelSpec:
        if model_id not in {"m", "n", "o"}:
            raise ModelUnknown(f"There is no model {model_id!r}.")
        path = Path("/nowhere") / f"{model_id}.gguf"
        return ModelSpec(
            model_id, path, (path,), 1, "gguf", "llama", model_id, "Q4_1", 1, 4096, 2, True, None
        )


async def until(fact: Callable[[], bool], what: str = "the fact", bound_s: float = 20.0) -> None:
    """Waits for a fact."""
    end = time.monotonic() + bound_s
    while not fact():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come to be within {bound_s} s")
        await asyncio.sleep(0.005)


async def ask(port: int, path: str, data: object | None = None) -> tuple[int, str]:
    """One request to a worker with its key; status and body."""
    body = b"" if data is None else json.dumps(data).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"{'GET' if data is None else 'POST'} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    data_back = await reader.read()
    writer.close()
    head, _, rest = data_back.partition(b"\r\n\r\n")
    return (int(head.split()[1]) if head else 0), rest.decode()
