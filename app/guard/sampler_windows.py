"""Reads commit and working sets on Windows. Not yet run there.

A worker's own memory is what it has committed for itself: that is what its job limits, and what ends in
the page file. The machine's warning is the commit headroom; the system's own notice comes late and only
confirms.
"""

import contextlib

from app.guard.child import Child, MachineMemory, WorkerMemory
from app.guard.win32 import LOW_MEMORY_NOTIFICATION, Win32, win32

WARNING_PERCENT = 10
CRITICAL_PERCENT = 5
"""Of the commit limit that is still free."""


class WindowsSampler:
    """`child.Sampler` on kernel32."""

    def __init__(self, api: Win32 | None = None) -> None:
        self._api = api or win32()
        self._handles: dict[str, int] = {}
        self._notification = int(
            self._api.kernel.CreateMemoryResourceNotification(LOW_MEMORY_NOTIFICATION) or 0
        )

    def machine(self, *, slow: bool) -> MachineMemory:  # noqa: ARG002 - nothing here is slow
        status = self._api.memory_status()
        share = 100 * int(status.commit_available) // max(int(status.commit_limit), 1)
        is_low = bool(self._notification) and self._api.is_memory_low(self._notification)
        used = int(status.commit_limit) - int(status.commit_available)
        return MachineMemory(
            available_bytes=int(status.available_physical),
            total_bytes=int(status.total_physical),
            swap_used_bytes=max(used - int(status.total_physical), 0),
            is_warning=share < WARNING_PERCENT,
            is_critical=is_low and share < CRITICAL_PERCENT,
        )

    def available_bytes(self) -> int:
        return self.machine(slow=False).available_bytes

    def watch(self, child: Child) -> None:
        self._handles[child.worker_id] = child.handle

    def forget(self, worker_id: str) -> None:
        self._handles.pop(worker_id, None)

    def worker(self, worker_id: str, *, slow: bool) -> WorkerMemory | None:
        handle = self._handles.get(worker_id)
        if handle is None:
            return None
        with contextlib.suppress(OSError):
            memory = self._api.process_memory(handle)
            own, resident = int(memory.private), int(memory.working_set)
            if own == 0 and resident == 0:
                return None  # it has ended
            return WorkerMemory(
                own_bytes=own,
                mapped_bytes=max(resident - own, 0),
                swap_bytes=0,
                resident_bytes=resident,
                read_bytes=self._api.read_bytes(handle) if slow else -1,
            )
        return None
