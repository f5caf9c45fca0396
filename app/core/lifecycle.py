"""States and causes that the app and the guard both speak of. Pure.

`WorkerState` has one writer: the supervisor, on the core loop.
"""

from enum import IntEnum, StrEnum


class WorkerState(StrEnum):
    """A worker's way from nothing to nothing.

    unloaded -> starting -> ready -> draining -> stopping -> unloaded; any but unloaded -> failed.
    """

    UNLOADED = "unloaded"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    STOPPING = "stopping"
    FAILED = "failed"


WORKER_TRANSITIONS: dict[WorkerState, frozenset[WorkerState]] = {
    WorkerState.UNLOADED: frozenset({WorkerState.STARTING}),
    WorkerState.STARTING: frozenset({WorkerState.READY, WorkerState.STOPPING, WorkerState.FAILED}),
    WorkerState.READY: frozenset({WorkerState.DRAINING, WorkerState.STOPPING, WorkerState.FAILED}),
    WorkerState.DRAINING: frozenset({WorkerState.STOPPING, WorkerState.FAILED}),
    WorkerState.STOPPING: frozenset({WorkerState.UNLOADED, WorkerState.FAILED}),
    WorkerState.FAILED: frozenset({WorkerState.STARTING, WorkerState.UNLOADED}),
}


class AppState(StrEnum):
    """What the tray shows; derived from what was probed, never from what was asked for."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    PAUSED = "paused"
    STOPPING = "stopping"
    FAILED = "failed"


class PressureLevel(IntEnum):
    """The guard's view of the machine, in rising order."""

    NORMAL = 0
    ELEVATED = 1
    CRITICAL = 2
    KILL = 3
    COOL_DOWN = 4


class ExitCause(StrEnum):
    """Why a worker ended, recorded by whoever ended it or told apart by evidence, never guessed."""

    STOPPED_BY_USER = "stopped_by_user"
    UNLOADED = "unloaded"
    APP_GONE = "app_gone"
    CAP_EXCEEDED = "cap_exceeded"
    MACHINE_MEMORY_LOW = "machine_memory_low"
    SWAPPING = "swapping"
    THRASHING = "thrashing"
    GPU_MEMORY = "gpu_memory"
    CANCEL_TIMED_OUT = "cancel_timed_out"
    KERNEL_OOM = "kernel_oom"
    ALLOCATION_FAILED = "allocation_failed"
    CRASHED = "crashed"
    EXITED = "exited"
    GUARD_LOST = "guard_lost"
    UNKNOWN = "unknown"

    @property
    def is_memory(self) -> bool:
        """Whether memory was the reason, so that a smaller restart is due."""
        return self in _MEMORY_CAUSES

    @property
    def is_wanted(self) -> bool:
        """Whether we meant it to end."""
        return self in {ExitCause.STOPPED_BY_USER, ExitCause.UNLOADED, ExitCause.APP_GONE}


_MEMORY_CAUSES = frozenset(
    {
        ExitCause.CAP_EXCEEDED,
        ExitCause.MACHINE_MEMORY_LOW,
        ExitCause.SWAPPING,
        ExitCause.THRASHING,
        ExitCause.GPU_MEMORY,
        ExitCause.CANCEL_TIMED_OUT,
        ExitCause.KERNEL_OOM,
        ExitCause.ALLOCATION_FAILED,
    }
)


class CapKind(StrEnum):
    """What enforces a worker's memory cap, strongest first (`guard/cap_<os>.py`)."""

    SYSTEMD_SCOPE = "systemd_scope"
    CGROUP_V2 = "cgroup_v2"
    CGROUP_V1 = "cgroup_v1"
    JOB_OBJECT = "job_object"
    RLIMIT_DATA = "rlimit_data"
    WATCH_ONLY = "watch_only"
