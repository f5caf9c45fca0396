"""RAM, processors and the GPU of a Mac. Blocking; called by `probe.py` only.

Its GPU works in the machine's RAM. How much of it Metal may wire down is a kernel setting
(`iogpu.wired_limit_mb`, 0 for the system's own choice of about two thirds, three quarters on larger
machines).
"""

import subprocess

import psutil

from app.core.hardware.machine import Gpu
from app.core.hardware.memory import Cores, Memory
from app.core.settings_meta import GIB, MIB

LARGE_MAC_BYTES = 36 * GIB
SYSCTL_TIMEOUT_S = 5


def read_memory() -> Memory:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return Memory(memory.total, memory.available, swap.total, swap.free)


def read_cores() -> Cores:
    logical = psutil.cpu_count() or 1
    # Efficiency cores slow a step down more than they help: the engine waits for the last thread.
    fast = _sysctl("hw.perflevel0.physicalcpu") or psutil.cpu_count(logical=False) or logical
    return Cores(fast, logical)


def read_gpus(memory: Memory, machine: str) -> tuple[Gpu, ...]:
    """The Metal GPU; an Intel Mac's is left alone, the engine gains nothing from it.

    Args:
        memory: of this machine.
        machine: the processor's kind, as `platform.machine()` says it.
    """
    if machine != "arm64":
        return ()
    share = 3 / 4 if memory.total_bytes > LARGE_MAC_BYTES else 2 / 3
    wired = _sysctl("iogpu.wired_limit_mb") * MIB or int(memory.total_bytes * share)
    return (
        Gpu(
            device="MTL0",
            name="Apple GPU",
            total_bytes=wired,
            free_bytes=min(wired, memory.available_bytes),
            has_display=True,
            is_integrated=True,
            kind="metal",
        ),
    )


def _sysctl(name: str) -> int:
    """A kernel number; 0 where there is none."""
    try:
        answer = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name],
            capture_output=True,
            text=True,
            timeout=SYSCTL_TIMEOUT_S,
            check=False,
        ).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int(answer) if answer.isdigit() else 0
