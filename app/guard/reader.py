"""Readings that may take long (GPU drivers, a look at all programs), kept out of the loop.

The watchdog says what it would like to know and takes the last values with their age; the reading is
done in a process of its own (`reader_process`), or a thread where the guard cannot fork.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

STALE_S = 3.0
"""Older values are not decided by."""
GPU_S = 0.5
PROGRAMS_S = 30.0
"""How often all programs are looked at while all is well, so that growth can be told later."""
PROGRAMS_PRESSED_S = 1.0
ANSWER_S = 10.0
"""An answer that is out for longer is not waited for; a driver may hang."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device: what is taken of it, and by which processes, in bytes.

    Attributes:
        device: as the engine names it (CUDA0).
        by_pid: dedicated memory by process, where the driver tells.
        shared_by_pid: memory of the host taken for the GPU.
    """

    device: str
    total_bytes: int
    free_bytes: int
    by_pid: dict[int, int] = field(default_factory=dict)
    shared_by_pid: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SlowReading:
    """What the reader saw last; `at_s` is monotonic, negative before the first look."""

    at_s: float = -1.0
    gpus: tuple[GpuReading, ...] = ()
    grown_program: str = ""
    grown_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What to read. `ours` are pids that are never blamed; GPU use is looked up for `pids`."""

    pids: tuple[int, ...]
    ours: tuple[int, ...] = ()
    gpus: bool = False
    programs: bool = False


Read = Callable[[Wish], SlowReading]


class SlowReader(Protocol):
    """Thread: the guard's only one."""

    def want(self, at_s: float, pids: tuple[int, ...], *, on_gpu: bool, is_pressed: bool) -> None:
        """Asks for what is due; never waits."""
        ...

    def latest(self) -> SlowReading:
        """The last values; never waits."""
        ...

    def close(self) -> None: ...


class Pace:
    """When which reading is due. Pure."""

    def __init__(self) -> None:
        self._gpu_s = self._programs_s = self._asked_s = float("-inf")
        self.is_out = False

    def due(
        self, at_s: float, pids: tuple[int, ...], *, on_gpu: bool, is_pressed: bool
    ) -> Wish | None:
        """The wish to send now, if any; one at a time."""
        if not pids or (self.is_out and at_s - self._asked_s < ANSWER_S):
            return None
        programs_s = PROGRAMS_PRESSED_S if is_pressed else PROGRAMS_S
        gpus = on_gpu and at_s - self._gpu_s >= GPU_S
        programs = at_s - self._programs_s >= programs_s
        if not gpus and not programs:
            return None
        self._asked_s, self.is_out = at_s, True
        if gpus:
            self._gpu_s = at_s
        if programs:
            self._programs_s = at_s
        return Wish(pids, gpus=gpus, programs=programs)

    def answered(self) -> None:
        self.is_out = False


class _NoReader:
    def want(self, *_what: object, **_how: object) -> None:
        return

    def latest(self) -> SlowReading:
        return SlowReading()

    def close(self) -> None:
        return


NO_READER: SlowReader = _NoReader()
