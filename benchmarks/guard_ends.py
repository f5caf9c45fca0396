"""Rows about ends: who survives whom, and whether the cause is named right."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from app.core.lifecycle import CapKind, ExitCause
from app.guard.options import GuardOptions
from benchmarks.guard_tools import figures, wait_dead
from tests.fakes.guard_bench import GuardBench

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parent.parent


async def deaths(runs: int, _seconds: float) -> Row:
    """Milliseconds from kill -9 until neither worker nor guard is alive."""
    row: Row = {}
    for name in ("app", "guard", "app and guard"):
        took: list[float] = []
        for _ in range(runs):
            app = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "tests.fakes.guard_app"),
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=asyncio.subprocess.PIPE,
            )
            assert app.stdout is not None
            guard, worker = (int(word) for word in (await app.stdout.readline()).split())
            for who in name.split(" and "):
                os.kill({"app": app.pid, "guard": guard}[who], signal.SIGKILL)
            took.append(await asyncio.to_thread(wait_dead, [worker, guard]))
            if name == "guard":
                app.kill()
            await app.wait()
        row[name] = {"ms": figures(took)}
    return row


async def causes(runs: int, _seconds: float) -> Row:
    """Five ways to end, each of them named by evidence."""
    row: Row = {}
    right = total = 0
    kernel = GuardOptions(watch=False, kernel_above_bytes=0)
    limited = GuardOptions(cap_kinds=[CapKind.RLIMIT_DATA], watch=False)
    cases: list[tuple[ExitCause, GuardOptions | None, tuple[str, ...]]] = [
        (ExitCause.CAP_EXCEEDED, None, ("--mib", "600", "--rate", "900")),
        (ExitCause.KERNEL_OOM, kernel, ("--mib", "600")),
        (ExitCause.CRASHED, None, ("--mib", "8", "--then", "crash")),
        (ExitCause.ALLOCATION_FAILED, limited, ("--mib", "1200")),
        (ExitCause.STOPPED_BY_USER, None, ("--mib", "8", "--hold", "60")),
    ]
    for wanted, options, arguments in cases:
        for _ in range(runs):
            bench = GuardBench(options)
            await bench.client.start()
            try:
                await bench.hog(*arguments)
                if wanted is ExitCause.STOPPED_BY_USER:
                    await bench.client.kill("w", wanted)
                exited = await bench.exited()
            finally:
                await bench.client.stop()
            total += 1
            right += exited.cause is wanted
            row[wanted] = exited.sentence
    return {"right": f"{right} of {total}"} | row
