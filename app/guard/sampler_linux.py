"""Reads /proc on Linux with descriptors that stay open, one pread a file and look.

Called by the watchdog's loop. What a worker owns is RssAnon + RssShmem + VmSwap: RSS also counts
mapped weights that the kernel can drop, and anonymous memory alone misses what went to swap and what
was mapped shared. psutil is not used here: it opens files anew and cannot tell anonymous pages apart.
"""

import contextlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

from app.guard import cap_linux
from app.guard.child import Child, MachineMemory, WorkerMemory

TREE_S = 1.0
"""How often a worker's tree is looked up anew; workers are single processes as a rule."""
_STATUS = re.compile(rb"^(VmRSS|RssAnon|RssFile|RssShmem|VmSwap):\s+(\d+) kB", re.MULTILINE)
_MEMINFO = re.compile(
    rb"^(MemTotal|MemFree|MemAvailable|Cached|SwapTotal|SwapFree):\s+(\d+) kB", re.MULTILINE
)
_VMSTAT = re.compile(
    rb"^(workingset_refault_file|workingset_refault|pswpout|oom_kill) (\d+)", re.MULTILINE
)
_GROUP = re.compile(rb"^(?:total_)?workingset_refault_file (\d+)", re.MULTILINE)
_READ = re.compile(rb"^read_bytes: (\d+)", re.MULTILINE)
_PSI = re.compile(rb"^(some|full) .*total=(\d+)", re.MULTILINE)
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
        info = {
            name: int(kib) * 1024 for name, kib in _MEMINFO.findall(read_quietly(self._meminfo))
        }
        if slow:
            self._last_slow = self._read_slow()
        some_s, full_s, refault_bytes, swapped, oom_kills = self._last_slow
        available = info.get(b"MemAvailable", info.get(b"MemFree", 0) + info.get(b"Cached", 0))
        return MachineMemory(
            available_bytes=available,
            total_bytes=info.get(b"MemTotal", 0),
            swap_used_bytes=info.get(b"SwapTotal", 0) - info.get(b"SwapFree", 0),
            psi_some_s=some_s,
            psi_full_s=full_s,
            refault_bytes=refault_bytes,
            swapped_out_pages=swapped,
            oom_kills=oom_kills,
        )

    def _read_slow(self) -> tuple[float, float, int, int, int]:
        psi = {name: int(us) / 1e6 for name, us in _PSI.findall(read_quietly(self._psi))}
        stat = {name: int(value) for name, value in _VMSTAT.findall(read_quietly(self._vmstat))}
        # Kernels before 5.9 count all refaults as one.
        refaults = stat.get(b"workingset_refault_file", stat.get(b"workingset_refault", -1))
        return (
            psi.get(b"some", -1.0),
            psi.get(b"full", -1.0),
            refaults * self._page_bytes if refaults >= 0 else -1,
            stat.get(b"pswpout", 0),
            stat.get(b"oom_kill", -1),
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
            found = dict(_STATUS.findall(read_quietly(fd)))
            if not found:
                continue  # a zombie has no memory lines
            alive = True
            swapped = int(found.get(b"VmSwap", 0))
            own += int(found.get(b"RssAnon", 0)) + int(found.get(b"RssShmem", 0)) + swapped
            mapped += int(found.get(b"RssFile", 0))
            swap += swapped
            resident += int(found.get(b"VmRSS", 0))
        if not alive:
            return None
        return WorkerMemory(
            own_bytes=own * 1024,
            mapped_bytes=mapped * 1024,
            swap_bytes=swap * 1024,
            resident_bytes=resident * 1024,
            read_bytes=self._read_bytes(watched) if slow else -1,
            refault_bytes=self._group_refaults(watched) if slow else -1,
        )

    def _read_bytes(self, watched: _Watched) -> int:
        found = [_READ.search(read_quietly(fd)) for fd in watched.io.values()]
        numbers = [int(match.group(1)) for match in found if match]
        return sum(numbers) if numbers else -1

    def _group_refaults(self, watched: _Watched) -> int:
        match = _GROUP.search(read_quietly(watched.group_stat))
        return int(match.group(1)) * self._page_bytes if match else -1

    def close(self) -> None:
        """Closes every descriptor."""
        for worker_id in list(self._watched):
            self.forget(worker_id)
        for fd in (self._meminfo, self._vmstat, self._psi):
            if fd >= 0:
                os.close(fd)
        self._meminfo = self._vmstat = self._psi = -1
