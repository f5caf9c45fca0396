"""Rows in which nothing may be stopped: the guard's own cost, its lateness, false kills."""

import asyncio
import contextlib
import itertools
import json
import os
import sys
import time
from typing import Any

from app.core.lifecycle import ExitCause
from app.guard.lines import MIB
from app.guard.protocol import Exited
from benchmarks.guard_tools import cpu_seconds, figures, status_mib
from tests.fakes.guard_bench import GuardBench

Row = dict[str, Any]


async def cadence(_runs: int, seconds: float) -> Row:
    """CPU of the guard, % of one core, at each of its periods, and its memory."""
    row: Row = {}
    bench = GuardBench()
    await bench.client.start()
    pid = bench.client.pid
    try:
        row["no worker, 1 s"] = await _cost(pid, seconds)
        cases = {
            "idle, 250 ms": (0, 900),
            "busy, 50 ms": (1, 900),
            "near its cap, 20 ms": (1, 500),
        }
        for name, (in_flight, own_mib) in cases.items():
            worker = name.split(",")[0].replace(" ", "-")
            await bench.hog(
                "--mib", "200", "--hold", "600", own_mib=own_mib, planned_mib=220, name=worker
            )
            await bench.until(lambda: bench.own_bytes() > 190 * MIB)
            await asyncio.sleep(0.5)
            bench.client.send_activity(
                worker, is_loading=False, in_flight=in_flight, last_used_s=time.monotonic()
            )
            await asyncio.sleep(0.5)
            row[name] = await _cost(pid, seconds)
            await bench.client.kill(worker, ExitCause.UNLOADED)
            bench.messages.clear()
        row["rss_mib"] = round(status_mib(pid, "VmRSS"), 1)
        row["rss_peak_mib"] = round(status_mib(pid, "VmHWM"), 1)
        row["own_mib"] = round(status_mib(pid, "RssAnon"), 1)
    finally:
        await bench.client.stop()
    return row


async def _cost(pid: int, seconds: float) -> float:
    before, start = cpu_seconds(pid), time.monotonic()
    await asyncio.sleep(seconds)
    return round(100 * (cpu_seconds(pid) - before) / (time.monotonic() - start), 3)


async def lateness(_runs: int, _seconds: float) -> Row:
    """How late the guard's 50 ms samples are while the app holds its interpreter for 2 s."""
    bench = GuardBench()
    await bench.client.start()
    try:
        # It grows a little all the time, so that every sample is a full one and is kept.
        await bench.hog(
            "--mib", "600", "--rate", "60", "--hold", "60", own_mib=1500, planned_mib=900
        )
        bench.client.send_activity("w", is_loading=False, in_flight=1, last_used_s=0.0)
        await asyncio.sleep(2.0)
        text = json.dumps(list(range(300_000)))
        start = time.monotonic()
        while time.monotonic() - start < 2.0:
            json.loads(text)
        end = time.monotonic()
        exited = await bench.client.kill("w", ExitCause.UNLOADED)
        assert exited is not None
        times = [one.at_s for one in exited.samples if start - 0.5 <= one.at_s <= end]
    finally:
        await bench.client.stop()
    late = [max(b - a - 0.05, 0.0) * 1000 for a, b in itertools.pairwise(times)]
    return {"late_ms": figures(late)}


_JOB = """
import json.decoder, sys, time
end_s = time.monotonic() + float(sys.argv[1])
source = open(json.decoder.__file__).read()
while time.monotonic() < end_s:
    compile(source, "x", "exec")
    bytearray(64 << 20)
"""


async def false_kills(_runs: int, seconds: float) -> Row:
    """Loads to their plan at full speed, over and over, beside a compiler-like job."""
    job = await asyncio.create_subprocess_exec(sys.executable, "-c", _JOB, str(seconds))
    bench = GuardBench()
    await bench.client.start()
    loads = 0
    killed: list[str] = []
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s:
            name = f"load{loads}"
            kind = ("anon", "huge", "shared")[loads % 3]
            # Python itself is 8 MiB of the plan's 600.
            await bench.hog(
                "--kind", kind, "--mib", "590", "--hold", "0.3", name=name,
                own_mib=600 + 512, planned_mib=600,
            )  # fmt: skip
            exited: Exited = await bench.exited(name)
            if exited.cause is not ExitCause.EXITED:
                killed.append(exited.sentence)
            loads += 1
    finally:
        await bench.client.stop()
        with contextlib.suppress(ProcessLookupError):
            job.kill()
        await job.wait()
    verdicts = [one.step for one in bench.verdicts()]
    return {"seconds": seconds, "loads": loads, "kills": len(killed), "verdicts": verdicts,
            "load": os.getloadavg()[0], "sentences": killed[:3]}  # fmt: skip
