"""Workers end in five ways, and each is named by its evidence."""

import os
import signal
import sys

import pytest

from app.core.lifecycle import CapKind, ExitCause
from app.guard.lines import MIB
from app.guard.options import GuardOptions
from tests.fakes.guard_bench import GuardBench, with_guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernel evidence of Linux")
UNWATCHED = GuardOptions(watch=False, kernel_above_bytes=0)


def test_cause_guard_kill_has_the_samples_before_it() -> None:
    async def test(bench: GuardBench) -> None:
        await bench.hog("--mib", "600", "--rate", "600", own_mib=200)
        exited = await bench.exited()
        assert exited.cause is ExitCause.CAP_EXCEEDED
        assert exited.evidence.exit_signal == signal.SIGKILL
        assert exited.evidence.cap_bytes == 200 * MIB
        growth = [sample.own_bytes for sample in exited.samples]
        assert growth[-1] > growth[0]
        killed = [one for one in bench.verdicts() if one.step == "killed"]
        assert killed[0].sentence == exited.sentence
        assert killed[0].kills_in_window == 1

    with_guard(test)


def test_cause_kernel_oom_is_read_from_its_counter() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "300", own_mib=128)
        if worker.message.cap.kind in {CapKind.RLIMIT_DATA, CapKind.WATCH_ONLY}:
            pytest.skip("no control group here")
        exited = await bench.exited()
        assert exited.cause is ExitCause.KERNEL_OOM
        assert exited.evidence.kernel_oom_kills >= 1
        assert "128 MiB" in exited.sentence

    with_guard(test, UNWATCHED)


def test_cause_crash_is_named_by_its_signal() -> None:
    async def test(bench: GuardBench) -> None:
        await bench.hog("--mib", "8", "--then", "crash")
        exited = await bench.exited()
        assert exited.cause is ExitCause.CRASHED
        assert "SIGSEGV" in exited.sentence

    with_guard(test)


def test_cause_refused_allocation_is_named() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "900", own_mib=128)
        assert worker.message.cap.kind is CapKind.RLIMIT_DATA
        exited = await bench.exited()
        assert exited.cause is ExitCause.ALLOCATION_FAILED
        assert exited.evidence.exit_code == 12

    with_guard(test, GuardOptions(cap_kinds=[CapKind.RLIMIT_DATA], watch=False))


def test_cause_stop_by_the_user_is_what_was_asked() -> None:
    async def test(bench: GuardBench) -> None:
        await bench.hog("--mib", "8", "--hold", "60")
        exited = await bench.client.kill("w", ExitCause.STOPPED_BY_USER, "You stopped it.")
        assert exited is not None
        assert exited.cause is ExitCause.STOPPED_BY_USER
        assert exited.sentence == "You stopped it."

    with_guard(test)


def test_cause_kill_from_outside_is_not_guessed() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        os.kill(worker.message.pid, signal.SIGKILL)
        exited = await bench.exited()
        assert exited.cause is ExitCause.UNKNOWN
        assert "Neither Coolhead nor" in exited.sentence

    with_guard(test)


def test_cause_own_exit_has_its_code() -> None:
    async def test(bench: GuardBench) -> None:
        await bench.hog("--mib", "8", "--hold", "0", "--code", "3")
        exited = await bench.exited()
        assert exited.cause is ExitCause.EXITED
        assert "exit code 3" in exited.sentence

    with_guard(test)
