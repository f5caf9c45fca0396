"""Reads /proc on Linux with descriptors that stay open, one pread a file and look.

Called by the watchdog's loop. What a worker owns is RssAnon + RssShmem + VmSwap: RSS also counts
mapped weights that the kernel can drop, and anonymous memory alone misses what went to swap and what
was mapped shared. psutil is not used here: it opens files anew and cannot tell anonymous pages apart.
"""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from app.guard import cap_linux
from app.guard.child import Child, MachineMemory, WorkerMemory

TREE_S = 1.0
"""How often a worker's tree is looked up anew; workers are single processes as a rule."""
_BUFFER_BYTES = 16384


def open_quietly(path: str) -> int:
    """A descriptor, or -1 where the file is not there or not ours to read."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def read_quietly(fd: int) -> bytes:
    """All of a small kernel file; empty once what it describes is gone."""
    if fd < 0:
        return b""
    try:
        return os.pread(fd, _BUFFER_BYTES, 0)
    except OSError:
        return b""


def number_after(text: bytes, key: bytes, default: int = -1) -> int:
    """The number behind a key; several times faster here than a regular expression."""
    at = text.find(key)
    if at < 0:
        return default
    digits = text[at + len(key) : at + len(key) + 32].split(None, 1)
    return int(digits[0]) if digits and digits[0].isdigit() else default


def kib_after(text: bytes, key: bytes) -> int:
    """The same for a line in kB, in bytes; 0 where the line is missing."""
    return number_after(text, key, 0) * 1024


@dataclass(slots=True)
class _Watched:
    pid: int
    group: str
    group_stat: int
    looked_s: float
    status: dict[int, int] = field(default_factory=dict)
    io: dict[int, int] = field(default_factory=dict)

    def close(self) -> None:
        for fd in (self.group_stat, *self.status.values(), *self.io.values()):
            if fd >= 0:
                os.close(fd)
        self.status.clear()
        self.io.clear()


class LinuxSampler:
    """`child.Sampler` on /proc.

    Args:
        proc: where the process files are; tests make their own.
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._meminfo = open_quietly(f"{proc}/meminfo")
        self._vmstat = open_quietly(f"{proc}/vmstat")
        self._psi = open_quietly(f"{proc}/pressure/memory")
        self._watched: dict[str, _Watched] = {}
        self._last_slow: tuple[float, float, int, int, int] = (-1.0, -1.0, -1, 0, -1)

    def machine(self, *, slow: bool) -> MachineMemory:
        info = read_quietly(self._meminfo)
        if slow:
            self._last_slow = self._read_slow()
        some_s, full_s, refault_bytes, swapped, oom_kills = self._last_slow
        return MachineMemory(
            available_bytes=_available_bytes(info),
            total_bytes=kib_after(info, b"MemTotal:"),
            swap_used_bytes=kib_after(info, b"SwapTotal:") - kib_after(info, b"SwapFree:"),
            psi_some_s=some_s,
            psi_full_s=full_s,
            refault_bytes=refault_bytes,
            swapped_out_pages=swapped,
            oom_kills=oom_kills,
        )

    def available_bytes(self) -> int:
        return _available_bytes(read_quietly(self._meminfo))

    def _read_slow(self) -> tuple[float, float, int, int, int]:
        psi = read_quietly(self._psi)
        stat = read_quietly(self._vmstat)
        # Kernels before 5.9 count all refaults as one.
        refaults = number_after(stat, b"\nworkingset_refault_file ")
        if refaults < 0:
            refaults = number_after(stat, b"\nworkingset_refault ")
        full = psi.find(b"full ")
        return (
            _stall_s(psi[:full]) if full >= 0 else -1.0,
            _stall_s(psi[full:]) if full >= 0 else -1.0,
            refaults * self._page_bytes if refaults >= 0 else -1,
            number_after(stat, b"\npswpout ", 0),
            number_after(stat, b"\noom_kill "),
        )

    def watch(self, child: Child) -> None:
        """Opens a worker's files; called again once its group is known."""
        self.forget(child.worker_id)
        watched = _Watched(
            pid=child.pid,
            group=child.group,
            group_stat=open_quietly(f"{child.group}/memory.stat") if child.group else -1,
            looked_s=0.0,
        )
        self._watched[child.worker_id] = watched
        self._look_for_tree(watched)

    def forget(self, worker_id: str) -> None:
        watched = self._watched.pop(worker_id, None)
        if watched is not None:
            watched.close()

    def _look_for_tree(self, watched: _Watched) -> None:
        watched.looked_s = time.monotonic()
        pids = {watched.pid}
        if watched.group:
            pids.update(cap_linux.group_pids(watched.group))
        else:
            pids.update(self._descendants(watched.pid))
        for pid in pids - watched.status.keys():
            watched.status[pid] = open_quietly(f"{self._proc}/{pid}/status")
            watched.io[pid] = open_quietly(f"{self._proc}/{pid}/io")
        for pid in watched.status.keys() - pids:
            for fd in (watched.status.pop(pid), watched.io.pop(pid)):
                if fd >= 0:
                    os.close(fd)

    def _descendants(self, pid: int) -> set[int]:
        found: set[int] = set()
        pending = [pid]
        while pending:
            with contextlib.suppress(OSError, ValueError):
                for task in Path(self._proc, str(pending.pop()), "task").iterdir():
                    children = {int(text) for text in (task / "children").read_text().split()}
                    pending.extend(children - found)
                    found |= children
        return found

    def worker(self, worker_id: str, *, slow: bool) -> WorkerMemory | None:
        watched = self._watched.get(worker_id)
        if watched is None:
            return None
        if slow and time.monotonic() - watched.looked_s >= TREE_S:
            self._look_for_tree(watched)
        own = mapped = swap = resident = 0
        alive = False
        for fd in watched.status.values():
            text = read_quietly(fd)
            rss = kib_after(text, b"VmRSS:")
            if not rss:
                continue  # a zombie has no memory
            alive = True
            swapped = kib_after(text, b"VmSwap:")
            own += kib_after(text, b"RssAnon:") + kib_after(text, b"RssShmem:") + swapped
            mapped += kib_after(text, b"RssFile:")
            swap += swapped
            resident += rss
        if not alive:
            return None
        return WorkerMemory(
            own_bytes=own,
            mapped_bytes=mapped,
            swap_bytes=swap,
            resident_bytes=resident,
            read_bytes=self._read_bytes(watched) if slow else -1,
            refault_bytes=self._group_refaults(watched) if slow else -1,
        )

    def _read_bytes(self, watched: _Watched) -> int:
        numbers = [number_after(read_quietly(fd), b"\nread_bytes: ") for fd in watched.io.values()]
        known = [number for number in numbers if number >= 0]
        return sum(known) if known else -1

    def _group_refaults(self, watched: _Watched) -> int:
        text = read_quietly(watched.group_stat)
        pages = number_after(text, b"\nworkingset_refault_file ")
        return pages * self._page_bytes if pages >= 0 else -1

    def close(self) -> None:
        """Closes every descriptor."""
        for worker_id in list(self._watched):
            self.forget(worker_id)
        for fd in (self._meminfo, self._vmstat, self._psi):
            if fd >= 0:
                os.close(fd)
        self._meminfo = self._vmstat = self._psi = -1


def _available_bytes(info: bytes) -> int:
    available = number_after(info, b"MemAvailable:")
    if available >= 0:
        return available * 1024
    # Kernels before 3.14 do not tell; this is on the safe side of it.
    return kib_after(info, b"MemFree:") + kib_after(info, b"\nCached:")


def _stall_s(line: bytes) -> float:
    return number_after(line, b"total=") / 1e6
