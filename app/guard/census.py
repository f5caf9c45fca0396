"""Which program, not ours, grew most lately; by name, and only on this machine.

Runs in the reader. Linux reads /proc; elsewhere psutil does.
"""

import collections
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

KEPT_S = 180.0
LEAST_BYTES = 64 * 1024 * 1024
"""Growth below this explains nothing."""


@dataclass(frozen=True, slots=True)
class Grown:
    """The program that grew most; empty where none did."""

    program: str = ""
    bytes: int = 0


Count = Callable[[frozenset[int]], Mapping[str, int]]
"""Own memory in bytes by program name, without the processes that are ours."""


def count_linux(ours: frozenset[int], proc: str = "/proc") -> dict[str, int]:
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    found: dict[str, int] = {}
    for entry in os.scandir(proc):
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            _, resident, shared, *_ = Path(entry.path, "statm").read_bytes().split()
            own = (int(resident) - int(shared)) * page_bytes
            if own < LEAST_BYTES // 16:
                continue
            name = Path(entry.path, "comm").read_text(errors="replace").strip()
        except (OSError, ValueError):
            continue
        found[name] = found.get(name, 0) + own
    return found


def count_psutil(ours: frozenset[int]) -> dict[str, int]:
    import psutil

    found: dict[str, int] = {}
    for process in psutil.process_iter(["pid", "name", "memory_info"]):
        info = process.info
        if info["pid"] in ours or info["memory_info"] is None:
            continue
        name = info["name"] or str(info["pid"])
        found[name] = found.get(name, 0) + int(info["memory_info"].rss)
    return found


class Census:
    """Keeps what programs had for three minutes, to say who grew."""

    def __init__(self, count: Count, now: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._now = now
        self._kept: collections.deque[tuple[float, Mapping[str, int]]] = collections.deque()

    def look(self, ours: frozenset[int]) -> Grown:
        """Counts anew and compares with the oldest count that is kept."""
        at_s = self._now()
        current = self._count(ours)
        while self._kept and self._kept[0][0] < at_s - KEPT_S:
            self._kept.popleft()
        before = self._kept[0][1] if self._kept else current
        self._kept.append((at_s, current))
        growth = {name: own - before.get(name, 0) for name, own in current.items()}
        name = max(growth, key=lambda one: growth[one], default="")
        if not name or growth[name] < LEAST_BYTES:
            return Grown()
        return Grown(name, growth[name])
