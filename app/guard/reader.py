"""Readings that may take long (GPU drivers, a look at all programs), kept out of the loop.

The watchdog asks for the last values and their age; the reading itself is done elsewhere.
"""

from dataclasses import dataclass, field
from typing import Protocol

STALE_S = 3.0
"""Older values are not decided by."""


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One device: what is taken of it, and by which processes, in bytes.

    Attributes:
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


class SlowReader(Protocol):
    def latest(self) -> SlowReading:
        """The last values; never waits."""
        ...

    def close(self) -> None: ...


class _NoReader:
    def latest(self) -> SlowReading:
        return SlowReading()

    def close(self) -> None:
        return


NO_READER: SlowReader = _NoReader()
