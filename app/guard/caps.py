"""What the kernel is asked to hold a worker to, made from the guard's own lines. Pure.

The kernel's line lies above the guard's, so that the guard acts first, with a reason, and the kernel
is the backstop that needs no one to be awake.
"""

from dataclasses import dataclass

from app.core.lifecycle import CapKind
from app.guard.lines import MIB
from app.guard.protocol import Caps

ABOVE_BYTES = 512 * MIB
"""Between the guard's line and the kernel's."""
STACK_BYTES = 8 * MIB
"""A thread's stack counts in full against RLIMIT_DATA."""
FLOOR_BYTES = 64 * MIB
"""No engine comes up in less; a smaller cap is a mistake and is refused before it is set."""


class NotHeld(Exception):
    """This kind of cap does not hold here; the message is the reason, for the report."""


class CapTooSmall(Exception):
    """The cap asked for cannot work; nothing was set."""


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """The figures for each kind of kernel cap.

    Attributes:
        group_bytes: for a control group, which counts the mapped weights too.
        data_bytes: for RLIMIT_DATA, which counts address space and leaves weights out.
        commit_bytes: for a Job Object, which counts committed memory and leaves weights out.
        on_gpu: whether a GPU is used: its driver reserves address space far beyond what it takes.
    """

    group_bytes: int
    data_bytes: int
    commit_bytes: int
    on_gpu: bool


@dataclass(frozen=True, slots=True)
class Held:
    """What holds, read back. `group` is the control group's folder, or empty."""

    kind: CapKind
    limit_bytes: int
    swap_forbidden: bool
    group: str = ""
    tried: tuple[str, ...] = ()


def kernel_limits(caps: Caps, above_bytes: int = ABOVE_BYTES) -> KernelLimits:
    """The kernel's lines for a worker.

    Raises:
        CapTooSmall: for a cap below the floor.
    """
    if caps.own_bytes < FLOOR_BYTES:
        raise CapTooSmall(
            f"The cap of {caps.own_bytes / MIB:.0f} MiB is below {FLOOR_BYTES / MIB:.0f} MiB, the least "
            "that an engine can start in."
        )
    if caps.mapped_bytes < 0 or caps.threads < 0:
        raise CapTooSmall("The memory plan has a negative figure.")
    own = caps.own_bytes + above_bytes
    return KernelLimits(
        group_bytes=own + caps.mapped_bytes,
        data_bytes=own + STACK_BYTES * max(caps.threads, 1),
        commit_bytes=own,
        on_gpu=bool(caps.gpu_bytes),
    )
