"""Rows in which something has to be stopped: overshoot, reaction, swap, thrash, desktop."""

import asyncio
import contextlib
import os
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.core.lifecycle import CapKind
from app.guard.lines import MIB
from app.guard.options import GuardOptions
from benchmarks.guard_tools import (
    CAP_MIB,
    Runaway,
    busy_cores,
    figures,
    run_away,
    swapfile,
    vmstat,
    wait_dead,
)
from tests.fakes.guard_bench import GuardBench, is_alive

Row = dict[str, Any]
GROUPS = (CapKind.SYSTEMD_SCOPE, CapKind.CGROUP_V2, CapKind.CGROUP_V1)


async def _repeat(
    runs: int, rate: float, kind: str, options: GuardOptions | None = None
) -> list[Runaway]:
    bench = GuardBench(options)
    await bench.client.start()
    try:
        return [await run_away(bench, rate, kind=kind, name=f"w{turn}") for turn in range(runs)]
    finally:
        await bench.client.stop()


async def overshoot(runs: int, _seconds: float) -> Row:
    """MiB touched past the cap, by the hog's own account."""
    row: Row = {}
    for rate, kind in ((1024, "anon"), (2048, "anon"), (4096, "huge"), (1024, "shared")):
        found = await _repeat(runs, rate, kind)
        row[f"{rate} MiB/s {kind}"] = {
            "overshoot_mib": figures([one.overshoot_mib for one in found]),
            "stopped_early_mib": figures([one.early_mib for one in found]),
            "achieved_mib_per_s": figures([one.rate_mib_per_s for one in found]),
            "causes": sorted({one.exited.cause for one in found}),
        }
    return row


async def reaction(runs: int, _seconds: float) -> Row:
    """Cap crossed to signal sent, with the predictor off, as it would act before the crossing."""
    options = GuardOptions(predict=False)
    row: Row = {}
    idle = await _repeat(runs, 1024, "anon", options)
    with busy_cores(os.cpu_count() or 1):
        busy = await _repeat(runs, 1024, "anon", options)
    for name, found in (("idle", idle), ("all cores busy", busy)):
        row[name] = {
            "ms": figures([one.reaction_ms for one in found if one.reaction_ms is not None]),
            "overshoot_mib": figures([one.overshoot_mib for one in found]),
        }
    return row


async def swap(runs: int, _seconds: float) -> Row:
    """Pages swapped out while a hog runs into its cap, with the guard and with it stopped."""
    with swapfile(512) as reason:
        if reason:
            return {"skipped": reason}
        with_guard: list[float] = []
        stopped: list[float] = []
        dead_ms: list[float] = []
        for turn in range(runs):
            bench = GuardBench(GuardOptions(kernel_above_bytes=64 * MIB))
            await bench.client.start()
            try:
                before = vmstat("pswpout")
                await run_away(bench, 2048, name=f"a{turn}")
                with_guard.append(vmstat("pswpout") - before)
                before = vmstat("pswpout")
                worker = await bench.hog(
                    "--mib", "1400", "--rate", "2048", own_mib=CAP_MIB, name=f"b{turn}"
                )
                guard = bench.client.pid
                os.kill(guard, signal.SIGSTOP)
                dead_ms.append(await asyncio.to_thread(wait_dead, [worker.message.pid]))
                stopped.append(vmstat("pswpout") - before)
                os.kill(guard, signal.SIGCONT)
                exited = await bench.exited(f"b{turn}")
                kind = worker.message.cap.kind
            finally:
                await bench.client.stop()
    return {
        "pages with the guard": figures(with_guard),
        "pages with the guard stopped": figures(stopped),
        "guard stopped: start to end ms": figures(dead_ms),
        "last cause": exited.cause,
        "cap": kind,
    }


async def thrash(runs: int, _seconds: float) -> Row:
    """A mapped file of 512 MiB, read over and over under a cap of three quarters of it."""
    size_mib = 512
    admission: list[float] = []
    gone: list[float] = []
    read: list[float] = []
    causes: set[str] = set()
    with tempfile.NamedTemporaryFile() as file:
        block = os.urandom(MIB)
        for _ in range(size_mib):
            file.write(block)
        file.flush()
        for turn in range(runs):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            bench = GuardBench(GuardOptions(kernel_above_bytes=0))
            await bench.client.start()
            try:
                worker = await bench.hog(
                    "--kind", "file", "--file", file.name, "--hold", "15",
                    own_mib=96, mapped_mib=size_mib * 3 // 4 - 96, name=f"t{turn}",
                )  # fmt: skip
                if worker.message.cap.kind not in GROUPS:
                    return {"skipped": f"no control group: {worker.message.cap.tried}"}
                start_s = await _first_thrash(worker.message.pid)
                read_before = _read_bytes(worker.message.pid)
                await _first_verdict(bench)
                admission.append((time.monotonic() - start_s) * 1000)
                read_mib = 0.0
                while not _has_exited(bench):
                    read_mib = max(read_mib, _read_bytes(worker.message.pid) - read_before)
                    await asyncio.sleep(0.01)
                gone.append((time.monotonic() - start_s) * 1000)
                read.append(read_mib / MIB)
                exited = await bench.exited(f"t{turn}")
                causes.add(exited.cause)
            finally:
                await bench.client.stop()
    return {
        "thrash to admission closed ms": figures(admission),
        "thrash to worker gone ms": figures(gone),
        "read again MiB": figures(read),
        "causes": sorted(causes),
    }


async def _first_verdict(bench: GuardBench) -> None:
    await bench.until(lambda: bool(bench.verdicts()))


def _has_exited(bench: GuardBench) -> bool:
    return any(type(one).__name__ == "Exited" for one in bench.messages)


def _read_bytes(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/io").read_text()
    except OSError:
        return 0
    return next((int(x.split()[1]) for x in text.splitlines() if x.startswith("read_bytes")), 0)


async def _first_thrash(pid: int) -> float:
    """The moment at which the machine's refaults begin to rise."""
    before = vmstat("workingset_refault_file")
    end_s = time.monotonic() + 15
    while time.monotonic() < end_s and is_alive(pid):
        if vmstat("workingset_refault_file") - before > 4 * MIB // 4096:
            return time.monotonic()
        await asyncio.sleep(0.01)
    raise TimeoutError("no refaults were seen")


_PROBE = """
import mmap, struct, sys, time
file = open(sys.argv[1], "r+b")
view = mmap.mmap(file.fileno(), 8 * 6000)
period, count = 1 / 60, 0
next_s = time.monotonic() + period
end_s = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end_s and count < 5999:
    time.sleep(max(next_s - time.monotonic(), 0))
    struct.pack_into("<d", view, 8 + 8 * count, time.monotonic() - next_s)
    count += 1
    struct.pack_into("<d", view, 0, count)
    next_s = max(next_s + period, time.monotonic())
"""


async def desktop(runs: int, _seconds: float) -> Row:
    """Lateness of a 60 Hz timer process while hogs at 2 GiB/s are stopped; and without a watch."""
    row: Row = {}
    cases = {
        "with the guard": GuardOptions(),
        "kernel cap only": GuardOptions(watch=False, kernel_above_bytes=256 * MIB),
    }
    for name, options in cases.items():
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            file.truncate(8 * 6000)
            probe = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _PROBE, file.name, str(5 + 3 * runs)
            )
            bench = GuardBench(options)
            await bench.client.start()
            try:
                for turn in range(runs):
                    await run_away(bench, 2048, name=f"d{turn}")
            finally:
                await bench.client.stop()
                with contextlib.suppress(ProcessLookupError):
                    probe.kill()
                await probe.wait()
            data = os.pread(file.fileno(), 8 * 6000, 0)
        count = int(struct.unpack_from("<d", data)[0])
        late = struct.unpack_from(f"<{count}d", data, 8)
        row[name] = {"late_ms": figures([max(one, 0.0) * 1000 for one in late])}
    return row
