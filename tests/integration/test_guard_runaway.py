"""A real guard, real kernel caps, and programs that eat memory."""

import sys

import pytest

from app.core.errors import GuardError
from app.core.lifecycle import CapKind, ExitCause
from app.guard.lines import MIB
from app.guard.options import GuardOptions
from tests.fakes.guard_bench import GuardBench, is_alive, with_guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the hogs and caps of Linux")


@pytest.mark.parametrize("kind", ["anon", "shared"])
def test_guard_runaway_is_stopped_near_its_cap(kind: str) -> None:
    async def test(bench: GuardBench) -> None:
        await bench.hog("--kind", kind, "--mib", "1200", "--rate", "1000")
        exited = await bench.exited()
        assert exited.cause is ExitCause.CAP_EXCEEDED
        assert exited.evidence.own_peak_bytes < (256 + 128) * MIB
        assert "256 MiB" in exited.sentence
        assert exited.samples

    with_guard(test)


def test_guard_stopping_kills_its_workers() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        assert is_alive(worker.message.pid)
        await bench.client.stop()
        assert not is_alive(worker.message.pid)
        assert bench.messages[-1].cause is ExitCause.STOPPED_BY_USER  # type: ignore[union-attr]
        assert bench.lost == []

    with_guard(test)


def test_guard_cap_too_small_is_refused_before_it_is_set() -> None:
    async def test(bench: GuardBench) -> None:
        with pytest.raises(GuardError, match="below 64 MiB"):
            await bench.hog("--mib", "8", own_mib=16)

    with_guard(test)


def test_guard_only_rlimit_allowed_is_what_holds() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        assert worker.message.cap.kind is CapKind.RLIMIT_DATA
        assert worker.message.cap.limit_bytes == (256 + 512 + 8) * MIB
        assert len(worker.message.cap.tried) == 3

    with_guard(test, GuardOptions(cap_kinds=[CapKind.RLIMIT_DATA]))
