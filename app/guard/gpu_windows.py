"""GPU memory by process on Windows, from the performance counters. Not yet run there.

NVIDIA's library cannot tell a process's memory under the display driver model, and the card's used
memory pins at its ceiling when the driver spills into main memory. The counters show the spill: shared
usage of the process grows. Runs in the reader's thread.
"""

import ctypes
import re
from typing import Any

from app.guard.gpu_reader import NvmlGpus
from app.guard.reader import GpuReading

PDH_FMT_LARGE = 0x400
PDH_MORE_DATA = 0x800007D2
DEDICATED = r"\GPU Process Memory(*)\Dedicated Usage"
SHARED = r"\GPU Process Memory(*)\Shared Usage"
DEVICE = "GPU"
_PID = re.compile(r"pid_(\d+)_")


class CounterItem(ctypes.Structure):
    """PDH_FMT_COUNTERVALUE_ITEM_W with a large value."""

    _fields_ = (
        ("name", ctypes.c_wchar_p),
        ("status", ctypes.c_uint32),
        ("value", ctypes.c_int64),
    )


def sum_by_pid(items: list[tuple[str, int]]) -> dict[int, int]:
    """Instances are named pid_1234_luid_..._phys_0; a process may have several."""
    found: dict[int, int] = {}
    for name, value in items:
        match = _PID.match(name)
        if match:
            pid = int(match.group(1))
            found[pid] = found.get(pid, 0) + value
    return found


class PdhGpus:
    """`read` gives one device with what each process has; free memory from NVIDIA's library."""

    def __init__(self, pdh: Any = None, nvml: NvmlGpus | None = None) -> None:
        loader: Any = ctypes
        self._pdh = pdh or loader.WinDLL("pdh")
        self._nvml = nvml or NvmlGpus()
        self._query = ctypes.c_void_p()
        self._counters: dict[str, ctypes.c_void_p] = {}
        if self._pdh.PdhOpenQueryW(None, None, ctypes.byref(self._query)) != 0:
            return
        for path in (DEDICATED, SHARED):
            counter = ctypes.c_void_p()
            added = self._pdh.PdhAddEnglishCounterW(self._query, path, None, ctypes.byref(counter))
            if added == 0:
                self._counters[path] = counter

    def read(self, _pids: tuple[int, ...]) -> tuple[GpuReading, ...]:
        """Nothing where the counters do not exist (Windows before 10, no GPU)."""
        cards = self._nvml.read()
        if not self._counters or self._pdh.PdhCollectQueryData(self._query) != 0:
            return cards
        free = min((card.free_bytes for card in cards), default=-1)
        total = max((card.total_bytes for card in cards), default=0)
        own = sum_by_pid(self._items(DEDICATED))
        shared = sum_by_pid(self._items(SHARED))
        return (*cards, GpuReading(DEVICE, total, free, own, shared))

    def _items(self, path: str) -> list[tuple[str, int]]:
        counter = self._counters.get(path)
        if counter is None:
            return []
        size, count = ctypes.c_uint32(0), ctypes.c_uint32(0)
        call = self._pdh.PdhGetFormattedCounterArrayW
        done = call(counter, PDH_FMT_LARGE, ctypes.byref(size), ctypes.byref(count), None)
        if done & 0xFFFFFFFF != PDH_MORE_DATA or size.value == 0:
            return []
        buffer = ctypes.create_string_buffer(size.value)
        done = call(counter, PDH_FMT_LARGE, ctypes.byref(size), ctypes.byref(count), buffer)
        if done != 0:
            return []
        items = ctypes.cast(buffer, ctypes.POINTER(CounterItem))
        return [(items[index].name or "", int(items[index].value)) for index in range(count.value)]
