"""A real guard, real kernel caps, and programs that eat memory."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from app.core.errors import GuardError
from app.core.lifecycle import CapKind, ExitCause
from app.guard.client import FromGuard, GuardClient, LaunchedWorker
from app.guard.lines import MIB
from app.guard.options import GuardOptions
from app.guard.protocol import Caps, Exited, Launch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the hogs and caps of Linux")
HOG = str(Path(__file__).parent.parent / "fakes" / "hog.py")
BOUND_S = 20


class Bench:
    """A guard with its client, and every message it sent."""

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
        async with asyncio.timeout(BOUND_S):
            while not fact():
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), 0.05)
                except TimeoutError:
                    continue

    async def hog(self, *arguments: str, own_mib: int = 256, name: str = "w") -> LaunchedWorker:
        null = os.open(os.devnull, os.O_RDWR)
        try:
            launch = Launch(
                name,
                "hog",
                [sys.executable, "-P", HOG, *arguments],
                {},
                "/",
                Caps(own_bytes=own_mib * MIB, planned_own_bytes=16 * MIB),
            )
            return await self.client.launch(launch, null, null, null)
        finally:
            os.close(null)

    async def exited(self, name: str = "w") -> Exited:
        def found() -> list[Exited]:
            return [
                one for one in self.messages if isinstance(one, Exited) and one.worker_id == name
            ]

        await self.until(lambda: bool(found()))
        return found()[-1]


def with_guard(
    test: Callable[[Bench], Awaitable[None]], options: GuardOptions | None = None
) -> None:
    async def run() -> None:
        bench = Bench(options)
        await bench.client.start()
        try:
            await test(bench)
        finally:
            await bench.client.stop()

    asyncio.run(run())


def is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("kind", ["anon", "shared"])
def test_guard_runaway_is_stopped_near_its_cap(kind: str) -> None:
    async def test(bench: Bench) -> None:
        worker = await bench.hog("--kind", kind, "--mib", "1200", "--rate", "1000")
        os.close(worker.pidfd)
        exited = await bench.exited()
        assert exited.cause is ExitCause.CAP_EXCEEDED
        assert exited.evidence.own_peak_bytes < (256 + 128) * MIB
        assert "256 MiB" in exited.sentence
        assert exited.samples

    with_guard(test)


def test_guard_stopping_kills_its_workers() -> None:
    async def test(bench: Bench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        os.close(worker.pidfd)
        assert is_alive(worker.message.pid)
        await bench.client.stop()
        assert not is_alive(worker.message.pid)
        assert bench.messages[-1].cause is ExitCause.STOPPED_BY_USER  # type: ignore[union-attr]
        assert bench.lost == []

    with_guard(test)


def test_guard_cap_too_small_is_refused_before_it_is_set() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(GuardError, match="below 64 MiB"):
            await bench.hog("--mib", "8", own_mib=16)

    with_guard(test)


def test_guard_only_rlimit_allowed_is_what_holds() -> None:
    async def test(bench: Bench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        os.close(worker.pidfd)
        assert worker.message.cap.kind is CapKind.RLIMIT_DATA
        assert worker.message.cap.limit_bytes == (256 + 512 + 8) * MIB
        assert len(worker.message.cap.tried) == 3

    with_guard(test, GuardOptions(cap_kinds=[CapKind.RLIMIT_DATA]))
