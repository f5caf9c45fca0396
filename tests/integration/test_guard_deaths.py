"""App, guard or both are killed or stopped: no worker outlives them, and no worker dies for nothing."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.core.errors import GuardError
from app.core.lifecycle import ExitCause
from app.guard.options import GuardOptions
from tests.fakes.guard_bench import GuardBench, is_alive, with_guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kernel signals of Linux")
ROOT = Path(__file__).parent.parent.parent
BOUND_S = 20.0


def within_bound(fact: Callable[[], bool]) -> float:
    start = time.monotonic()
    while not fact():
        assert time.monotonic() - start < BOUND_S
        time.sleep(0.01)
    return time.monotonic() - start


def start_app() -> tuple["subprocess.Popen[str]", int, int]:
    app = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.fakes.guard_app"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert app.stdout is not None
    guard, worker = (int(word) for word in app.stdout.readline().split())
    assert is_alive(guard)
    assert is_alive(worker)
    return app, guard, worker


@pytest.mark.parametrize("victims", ["app", "guard and app", "app and guard"])
def test_guard_or_app_killed_leaves_no_worker(victims: str) -> None:
    app, guard, worker = start_app()
    pids = {"app": app.pid, "guard": guard}
    for name in victims.split(" and "):
        os.kill(pids[name], signal.SIGKILL)
    within_bound(lambda: not is_alive(worker) and not is_alive(guard))
    app.wait(BOUND_S)
    assert app.stdout is not None
    app.stdout.close()


def test_guard_killed_is_told_and_its_worker_is_gone() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "32", "--hold", "60")
        os.kill(bench.client.pid, signal.SIGKILL)
        await bench.until(lambda: bool(bench.lost))
        await bench.until(lambda: not is_alive(worker.message.pid))
        assert "guard ended" in bench.lost[0]
        assert not bench.client.is_alive
        assert bench.client.pid == 0
        with pytest.raises(GuardError):
            await bench.hog("--mib", "8")

    with_guard(test)


def test_guard_killed_during_a_launch_fails_the_launch() -> None:
    async def test(bench: GuardBench) -> None:
        os.kill(bench.client.pid, signal.SIGSTOP)
        launching = asyncio.ensure_future(bench.hog("--mib", "8"))
        await asyncio.sleep(0.05)
        os.kill(bench.client.pid, signal.SIGKILL)
        with pytest.raises(GuardError, match="ended with it"):
            await launching

    with_guard(test)


def test_guard_replaced_takes_new_workers() -> None:
    async def test(bench: GuardBench) -> None:
        os.kill(bench.client.pid, signal.SIGKILL)
        await bench.until(lambda: bool(bench.lost))
        second = GuardBench()
        await second.client.start()
        worker = await second.hog("--mib", "8", "--hold", "60")
        assert is_alive(worker.message.pid)
        await second.client.stop()
        assert not is_alive(worker.message.pid)

    with_guard(test)


@pytest.mark.parametrize("who", ["guard", "app"])
def test_guard_or_app_stopped_for_a_while_kills_nothing(who: str) -> None:
    app, guard, worker = start_app()
    pid = {"guard": guard, "app": app.pid}[who]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(2.5)
    os.kill(pid, signal.SIGCONT)
    time.sleep(1.0)
    assert is_alive(worker)
    assert is_alive(guard)
    app.kill()
    app.wait(BOUND_S)
    within_bound(lambda: not is_alive(worker) and not is_alive(guard))
    assert app.stdout is not None
    app.stdout.close()


def test_worker_that_hides_its_memory_in_a_child_is_stopped_with_it() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "900", "--rate", "300", "--fork", "--hold", "60")
        exited = await bench.exited()
        assert exited.cause is ExitCause.CAP_EXCEEDED
        await bench.until(lambda: not is_alive(worker.message.pid))

    with_guard(test)


def test_worker_that_ignores_signals_ends_within_the_stop() -> None:
    async def test(bench: GuardBench) -> None:
        worker = await bench.hog("--mib", "8", "--hold", "60")
        ended = await bench.client.kill("w", ExitCause.UNLOADED)
        assert ended is not None
        assert ended.cause is ExitCause.UNLOADED
        assert not is_alive(worker.message.pid)
        assert await bench.client.kill("w", ExitCause.UNLOADED) is None

    with_guard(test)


def test_guard_twice_started_or_without_program_is_an_error() -> None:
    async def test(bench: GuardBench) -> None:
        with pytest.raises(GuardError, match="before"):
            await bench.client.start()

    with_guard(test)


def test_guard_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(command: list[str]) -> str:
        monkeypatch.setattr("app.guard.client.guard_command", lambda: command)
        bench = GuardBench()
        with pytest.raises(GuardError) as caught:
            await bench.client.start()
        await bench.client.stop()
        assert bench.lost == []
        return str(caught.value)

    said = asyncio.run(fail([sys.executable, "-c", "raise SystemExit('no such thing')"]))
    assert "no such thing" in said
    assert "could not be started" in asyncio.run(fail(["/nonexistent/program"]))


def test_worker_program_that_is_missing_is_named() -> None:
    async def test(bench: GuardBench) -> None:
        from app.guard.protocol import Caps, Launch

        null = os.open(os.devnull, os.O_RDWR)
        launch = Launch("x", "m", ["/nonexistent/engine"], {}, "/", Caps(256 << 20))
        with pytest.raises(GuardError, match="No such file"):
            await bench.client.launch(launch, null, null, null)
        os.close(null)

    with_guard(test, GuardOptions())
