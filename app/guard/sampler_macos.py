"""Reads a worker's footprint and the machine's memory on macOS, by calls into libproc and sysctl.

The footprint is what the system itself judges a process by: it counts compressed pages and memory of
the GPU, which RSS misses. Mapped weights are not in it. Not yet run on a Mac.
"""

import ctypes
from typing import Any

from app.guard.child import Child, MachineMemory, WorkerMemory

RUSAGE_INFO_V4 = 4
_UUID_BYTES = 16
_NUMBERS = 62
_RESIDENT, _FOOTPRINT, _READ = 6, 7, 16
"""Places in rusage_info_v4 after the uuid (sys/resource.h)."""
_WARNING, _CRITICAL = 2, 4


class RusageInfo(ctypes.Structure):
    """rusage_info_v4, with room for later versions."""

    _fields_ = (("uuid", ctypes.c_uint8 * _UUID_BYTES), ("numbers", ctypes.c_uint64 * _NUMBERS))


class SwapUsage(ctypes.Structure):
    """struct xsw_usage (sys/sysctl.h)."""

    _fields_ = (
        ("total", ctypes.c_uint64),
        ("available", ctypes.c_uint64),
        ("used", ctypes.c_uint64),
        ("page_size", ctypes.c_uint32),
        ("is_encrypted", ctypes.c_bool),
    )


class MacosSampler:
    """`child.Sampler` on libproc.

    Args:
        library: libSystem; tests pass their own.
    """

    def __init__(self, library: Any = None) -> None:
        self._library = library or ctypes.CDLL("/usr/lib/libSystem.dylib", use_errno=True)
        self._pids: dict[str, int] = {}
        self._total_bytes = self._number("hw.memsize", ctypes.c_uint64)

    def _sysctl(self, name: str, value: Any) -> bool:
        length = ctypes.c_size_t(ctypes.sizeof(value))
        done = self._library.sysctlbyname(
            name.encode(), ctypes.byref(value), ctypes.byref(length), None, ctypes.c_size_t(0)
        )
        return bool(done == 0)

    def _number(self, name: str, kind: Any, default: int = 0) -> int:
        value = kind()
        return int(value.value) if self._sysctl(name, value) else default

    def machine(self, *, slow: bool) -> MachineMemory:  # noqa: ARG002 - nothing here is slow
        swap = SwapUsage()
        has_swap = self._sysctl("vm.swapusage", swap)
        free_percent = self._number("kern.memorystatus_level", ctypes.c_int, 100)
        pressure = self._number("kern.memorystatus_vm_pressure_level", ctypes.c_int)
        return MachineMemory(
            available_bytes=self._total_bytes * free_percent // 100,
            total_bytes=self._total_bytes,
            swap_used_bytes=int(swap.used) if has_swap else 0,
            is_warning=pressure >= _WARNING,
            is_critical=pressure >= _CRITICAL,
        )

    def available_bytes(self) -> int:
        return self.machine(slow=False).available_bytes

    def watch(self, child: Child) -> None:
        self._pids[child.worker_id] = child.pid

    def forget(self, worker_id: str) -> None:
        self._pids.pop(worker_id, None)

    def worker(self, worker_id: str, *, slow: bool) -> WorkerMemory | None:
        pid = self._pids.get(worker_id)
        if pid is None:
            return None
        info = RusageInfo()
        if self._library.proc_pid_rusage(pid, RUSAGE_INFO_V4, ctypes.byref(info)) != 0:
            return None
        footprint, resident = int(info.numbers[_FOOTPRINT]), int(info.numbers[_RESIDENT])
        if footprint == 0 and resident == 0:
            return None  # a zombie
        return WorkerMemory(
            own_bytes=footprint,
            # Clean pages of mapped files are resident but not in the footprint.
            mapped_bytes=max(resident - footprint, 0),
            swap_bytes=0,
            resident_bytes=resident,
            read_bytes=int(info.numbers[_READ]) if slow else -1,
        )
