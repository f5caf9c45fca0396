"""What the policy looks at, and what it asks for: immutable, with no handle in it. Pure.

Structs rather than dataclasses: they are made 20 times a second, and made in C.
"""

import msgspec

from app.core.lifecycle import ExitCause, PressureLevel


class WorkerReading(msgspec.Struct, frozen=True, gc=False):
    """One worker at one moment: what it was allowed, what it has, what it does.

    Attributes:
        planned_own_bytes: the plan's figure for its own memory, 0 where none was made.
        cap_own_bytes: the line that it is killed at.
        planned_mapped_bytes: weights that it maps.
        read_bytes: read from disk since its start, -1 unknown.
        refault_bytes: read again by its own control group since its start, -1 unknown.
        in_flight: answers being made, -1 while the app has not said.
        gpu_bytes: by device name, against `gpu_cap_bytes`.
        shared_gpu_bytes: GPU memory that lies in host RAM, beside the dedicated memory still free.
        is_ending: it was killed and is not reaped yet.
        grown_bytes: own memory that it took within the time that other programs are compared over.
    """

    worker_id: str
    model_id: str
    own_bytes: int
    mapped_bytes: int = 0
    swap_bytes: int = 0
    resident_bytes: int = 0
    planned_own_bytes: int = 0
    cap_own_bytes: int = 0
    planned_mapped_bytes: int = 0
    read_bytes: int = -1
    refault_bytes: int = -1
    is_loading: bool = False
    in_flight: int = -1
    last_used_s: float = 0.0
    gpu_bytes: dict[str, int] = {}
    gpu_cap_bytes: dict[str, int] = {}
    shared_gpu_bytes: int = 0
    gpu_free_bytes: int = -1
    is_ending: bool = False
    grown_bytes: int = 0

    @property
    def is_idle(self) -> bool:
        """Known to do nothing; an unknown one counts as busy."""
        return self.in_flight == 0 and not self.is_loading


class Reading(msgspec.Struct, frozen=True, gc=False):
    """The machine and every worker at one moment. See `child.MachineMemory` for the counters.

    Attributes:
        is_slow: whether pressure, refaults and read bytes were read anew.
        grown_program: the program, not ours, that grew most lately; empty where unknown.
    """

    at_s: float
    period_s: float
    available_bytes: int
    total_bytes: int
    workers: tuple[WorkerReading, ...] = ()
    swap_used_bytes: int = 0
    psi_some_s: float = -1.0
    psi_full_s: float = -1.0
    refault_bytes: int = -1
    is_slow: bool = True
    is_warning: bool = False
    is_critical: bool = False
    grown_program: str = ""
    grown_bytes: int = 0


class Action(msgspec.Struct, frozen=True):
    """One thing to do. `step` as in `protocol.Verdict`, or "kill", which the guard does itself.

    Attributes:
        line_bytes: the line that was crossed, for the evidence.
    """

    step: str
    level: PressureLevel
    sentence: str
    cause: ExitCause | None = None
    worker_id: str = ""
    needed_bytes: int = 0
    deadline_s: float = 0.0
    line_bytes: int = 0
