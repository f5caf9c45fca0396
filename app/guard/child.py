"""What the watchdog knows and asks of a worker's process, the same on every system. Pure shapes.

`spawn_<os>` offers a `Spawner`, `sampler_<os>` a `Sampler`; `this_system` in `systems` picks them.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec

from app.core.lifecycle import CapKind
from app.guard.caps import Held
from app.guard.protocol import Launch


class SpawnFailed(Exception):
    """The worker was not started; the message is the reason, for people."""


@dataclass(slots=True)
class Child:
    """A worker's process. Thread: the guard's only one.

    Attributes:
        handle: what `link.wait` reports as ready once the process has ended.
        report: what `link.wait` reports as ready once `Spawner.report` has news; -1 when it has none.
        held: the cap, once known; None while the worker is still placing itself.
        group: its control group or job, empty where there is none.
    """

    worker_id: str
    pid: int
    start_time: float
    handle: int
    report: int = -1
    report_text: bytes = b""
    held: Held | None = None
    failure: str = ""

    @property
    def group(self) -> str:
        return self.held.group if self.held else ""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """How a process ended, and what the kernel counted on it.

    Attributes:
        group_oom_kills: the control group's own counter; -1 where it could not be read.
        peak_bytes: highest resident memory by the kernel's account, 0 where unknown.
    """

    exit_code: int | None
    exit_signal: int | None
    group_oom_kills: int = -1
    peak_bytes: int = 0


class WorkerMemory(msgspec.Struct, frozen=True, gc=False):
    """One look at a worker's whole tree, in bytes.

    Attributes:
        own_bytes: anonymous + shared + swapped: what only its end gives back.
        mapped_bytes: pages of files it has mapped: the kernel may drop them at any time.
        read_bytes: read from disk since its start, -1 where unknown.
        refault_bytes: pages its own group had to read again, since the start; -1 where unknown.
        shared_gpu_bytes: GPU memory that lies in host RAM.
    """

    own_bytes: int
    mapped_bytes: int
    swap_bytes: int
    resident_bytes: int
    read_bytes: int = -1
    refault_bytes: int = -1
    gpu_bytes: dict[str, int] = {}
    shared_gpu_bytes: int = 0


class MachineMemory(msgspec.Struct, frozen=True, gc=False):
    """One look at the machine.

    Attributes:
        psi_some_s: seconds since boot in which some task waited for memory; -1 where unknown.
        psi_full_s: the same for all tasks.
        refault_bytes: file pages read again since boot; -1 where unknown.
        swapped_out_pages: since boot.
        oom_kills: by the kernel since boot; -1 where unknown.
        is_warning: the system's own early warning (macOS, Windows).
        is_critical: the system's own late warning.
    """

    available_bytes: int
    total_bytes: int
    swap_used_bytes: int = 0
    psi_some_s: float = -1.0
    psi_full_s: float = -1.0
    refault_bytes: int = -1
    swapped_out_pages: int = 0
    oom_kills: int = -1
    is_warning: bool = False
    is_critical: bool = False


class Spawner(Protocol):
    """Starts, ends and reaps workers. All calls come from the guard's main thread."""

    def expected_cap(self) -> Held: ...

    def spawn(self, launch: Launch, stdio: tuple[int, int, int]) -> Child:
        """Starts a worker that places itself under its cap before its engine runs.

        Raises:
            SpawnFailed: with the reason.
        """
        ...

    def poll_report(self, child: Child) -> bool:
        """Reads how far the start is; True once `held` or `failure` is final."""
        ...

    def kill(self, child: Child, *, release: bool = False) -> None:
        """Ends the whole tree now. `release` frees its memory at once, which takes our own time."""
        ...

    def oom_kills(self, child: Child) -> int:
        """Kills by the kernel counted on the worker's group; -1 where unknown."""
        ...

    def reap(self, child: Child) -> ExitStatus | None:
        """How it ended and nothing left of it; None while it lives."""
        ...

    def handle_to_send(self, child: Child) -> tuple[int, ...]:
        """What goes to the app beside `Launched`."""
        ...

    def close(self) -> None:
        """Releases what is held for all workers."""
        ...


class Sampler(Protocol):
    """Reads the figures. Handles stay open between looks."""

    def machine(self, *, slow: bool) -> MachineMemory:
        """`slow` adds what costs more: pressure, refaults, kills."""
        ...

    def available_bytes(self) -> int:
        """Of the machine; the cheapest look."""
        ...

    def watch(self, child: Child) -> None: ...

    def forget(self, worker_id: str) -> None: ...

    def worker(self, worker_id: str, *, slow: bool) -> WorkerMemory | None:
        """None once the process is gone."""
        ...


UNKNOWN_CAP = Held(CapKind.WATCH_ONLY, 0, swap_forbidden=False)
