"""RAM and processors of a Linux machine, from /proc and /sys. Blocking, below a millisecond.

Called by `probe.py` only. A container's own limit counts where it is lower than the machine's memory.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from app.core.hardware.memory import Cores, Memory

PROC = Path("/proc")
SYS = Path("/sys")


def read_memory(proc: Path = PROC, sys: Path = SYS) -> Memory:
    """The kernel's own reckoning, and a memory limit of the group that this process is in."""
    values: dict[str, int] = {}
    for line in (proc / "meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()
        if number and number[0].isdigit():
            values[name] = int(number[0]) * 1024
    total = values["MemTotal"]
    # Kernels before 3.14 have no MemAvailable; free and cache come closest.
    available = values.get("MemAvailable", values.get("MemFree", 0) + values.get("Cached", 0))
    for limit, used in _group_limits(proc, sys):
        total = min(total, limit)
        available = min(available, max(0, limit - used))
    return Memory(
        total, min(available, total), values.get("SwapTotal", 0), values.get("SwapFree", 0)
    )


def _group_limits(proc: Path, sys: Path) -> Iterable[tuple[int, int]]:
    """(limit, unreclaimable use) in bytes of this process's cgroup v2 and those above it."""
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    group = next((line[3:] for line in lines if line.startswith("0::")), "")
    root = sys / "fs" / "cgroup"
    folder = root / group.strip("/")
    while root in (folder, *folder.parents):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is not None and used is not None:
            yield limit, max(0, used - _inactive_file(folder))
        folder = folder.parent


def _inactive_file(folder: Path) -> int:
    try:
        text = (folder / "memory.stat").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if name == "inactive_file":
            return int(number)
    return 0


def _number(path: Path) -> int | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return int(text) if text.isdigit() else None


def read_cores(sys: Path = SYS, allowed: Iterable[int] | None = None) -> Cores:
    """Processors that this process may run on; hyper-threads of one core counted once."""
    cpus = sorted(os.sched_getaffinity(0) if allowed is None else allowed)
    cores = set()
    for cpu in cpus:
        folder = sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        package, core = _number(folder / "physical_package_id"), _number(folder / "core_id")
        cores.add((package, core) if core is not None else ("", cpu))
    return Cores(max(1, len(cores)), max(1, len(cpus)))
