"""What the guard's benchmarks share: a hog that tells how far it is, spinners, figures."""

import contextlib
import math
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.guard.lines import MIB
from app.guard.protocol import Exited
from tests.fakes.guard_bench import GuardBench, is_alive

CAP_MIB = 512
MOST_MIB = 1400


@dataclass(frozen=True, slots=True)
class Runaway:
    """One hog that ran into its cap. `overshoot_mib` is 0 when it was stopped before."""

    exited: Exited
    overshoot_mib: float
    early_mib: float
    reaction_ms: float | None
    rate_mib_per_s: float


async def run_away(
    bench: GuardBench,
    rate_mib_per_s: float,
    *,
    kind: str = "anon",
    cap_mib: int = CAP_MIB,
    name: str = "w",
    planned_mib: int = 16,
) -> Runaway:
    """Starts a hog, waits for its end, and reads from its own account what it had touched."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as progress:
        progress.write(bytes(24))
        progress.flush()
        await bench.hog(
            "--kind", kind, "--mib", str(MOST_MIB), "--rate", str(rate_mib_per_s),
            "--progress", progress.name, "--cap", str(cap_mib * MIB),
            own_mib=cap_mib, planned_mib=planned_mib, name=name,
        )  # fmt: skip
        exited = await bench.exited(name)
        touched, before, crossed_ns = struct.unpack("<QQQ", os.pread(progress.fileno(), 24, 0))
    past_mib = (touched + before - cap_mib * MIB) / MIB
    killed_s = exited.evidence.killed_at_s
    reaction_ms = None
    if killed_s:
        # Stopped within the very step that crossed the cap: the hog had no time to note it.
        reaction_ms = (killed_s - crossed_ns / 1e9) * 1000 if crossed_ns else 0.0
    growing = [one for one in exited.samples if one.own_bytes > 16 * MIB]
    span_s = growing[-1].at_s - growing[0].at_s if len(growing) > 1 else 0.0
    rate = (growing[-1].own_bytes - growing[0].own_bytes) / MIB / span_s if span_s else 0.0
    return Runaway(
        exited,
        overshoot_mib=max(past_mib, 0.0),
        early_mib=max(-past_mib, 0.0),
        reaction_ms=reaction_ms,
        rate_mib_per_s=rate,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Nearest rank; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def figures(values: Sequence[float]) -> dict[str, float]:
    return {
        "n": len(values),
        "p50": round(percentile(values, 50), 2),
        "p95": round(percentile(values, 95), 2),
        "p99": round(percentile(values, 99), 2),
        "max": round(max(values, default=math.nan), 2),
    }


def wait_dead(pids: Sequence[int], most_s: float = 10.0) -> float:
    """Blocks until none of them is alive; returns the milliseconds it took."""
    start_s = time.monotonic()
    while any(is_alive(pid) for pid in pids) and time.monotonic() - start_s < most_s:
        time.sleep(0.002)
    return (time.monotonic() - start_s) * 1000


@contextlib.contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """Keeps cores busy meanwhile; each spinner ends by itself after a minute."""
    code = "import time\nend=time.monotonic()+60\nwhile time.monotonic()<end: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def cpu_seconds(pid: int) -> float:
    """Time on a core, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def status_mib(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def vmstat(name: str) -> int:
    for line in Path("/proc/vmstat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


@contextlib.contextmanager
def swapfile(mib: int) -> Iterator[str]:
    """Makes swap for the time of a test; yields why there is none, or nothing where there is."""
    path = Path(tempfile.gettempdir(), f"coolhead-swap-{os.getpid()}")
    reason = ""
    try:
        for argv in (
            ["fallocate", "-l", f"{mib}M", str(path)],
            ["chmod", "600", str(path)],
            ["mkswap", str(path)],
            ["swapon", str(path)],
        ):
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                reason = f"{argv[0]}: {done.stderr.strip()}"
                break
        yield reason
    except FileNotFoundError as missing:
        yield str(missing)
    finally:
        if not reason:
            subprocess.run(["swapoff", str(path)], capture_output=True, check=False)
        path.unlink(missing_ok=True)
