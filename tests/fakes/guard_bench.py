"""A real guard with its client, for integration tests of the guard and its benchmark."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from app.guard.client import FromGuard, GuardClient, LaunchedWorker
from app.guard.lines import MIB
from app.guard.options import GuardOptions
from app.guard.protocol import Caps, Exited, Launch, Samples, Verdict

HOG = str(Path(__file__).parent / "hog.py")
BOUND_S = 20.0


class GuardBench:
    """Every message the guard sent, and ways to wait for one."""

    def __init__(self, options: GuardOptions | None = None) -> None:
        self.messages: list[FromGuard] = []
        self.lost: list[str] = []
        self._news = asyncio.Event()
        self.client = GuardClient(self._take, self._lose, options)

    def _take(self, message: FromGuard) -> None:
        self.messages.append(message)
        self._news.set()

    def _lose(self, reason: str) -> None:
        self.lost.append(reason)
        self._news.set()

    async def until(self, fact: Callable[[], bool]) -> None:
        """Waits for a fact, asking at every message and every 20 ms."""
        async with asyncio.timeout(BOUND_S):
            while not fact():
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), 0.02)
                except TimeoutError:
                    continue

    async def hog(
        self,
        *arguments: str,
        own_mib: int = 256,
        planned_mib: int = 16,
        mapped_mib: int = 0,
        name: str = "w",
        stdout_fd: int = -1,
        gpu_bytes: dict[str, int] | None = None,
    ) -> LaunchedWorker:
        """Starts `hog.py` as a worker; its pidfd is closed already."""
        null = os.open(os.devnull, os.O_RDWR)
        caps = Caps(own_mib * MIB, mapped_mib * MIB, planned_mib * MIB, gpu_bytes=gpu_bytes or {})
        argv = [sys.executable, "-P", HOG, *arguments]
        try:
            worker = await self.client.launch(
                Launch(name, "hog", argv, {}, "/", caps),
                null,
                stdout_fd if stdout_fd >= 0 else null,
                null,
            )
        finally:
            os.close(null)
        os.close(worker.pidfd)
        return worker

    async def exited(self, name: str = "w") -> Exited:
        """The report of a worker's end."""
        await self.until(lambda: self._exits(name) != [])
        return self._exits(name)[-1]

    def _exits(self, name: str) -> list[Exited]:
        return [one for one in self.messages if isinstance(one, Exited) and one.worker_id == name]

    def verdicts(self) -> list[Verdict]:
        return [one for one in self.messages if isinstance(one, Verdict)]

    def samples(self) -> list[Samples]:
        return [one for one in self.messages if isinstance(one, Samples)]

    def own_bytes(self) -> int:
        """Of the first worker, as last told."""
        told = [one.workers[0].own_bytes for one in self.samples() if one.workers]
        return told[-1] if told else 0


def with_guard(
    test: Callable[[GuardBench], Awaitable[None]], options: GuardOptions | None = None
) -> None:
    """Runs `test` with a guard that is started before and stopped after it."""

    async def run() -> None:
        bench = GuardBench(options)
        await bench.client.start()
        try:
            await test(bench)
        finally:
            await bench.client.stop()

    asyncio.run(run())


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
