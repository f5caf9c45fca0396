"""Why a worker ended, told apart by evidence and never guessed. Pure.

The order of belief: our own record of a kill, unless the kernel's counter had risen before it; the
kernel's counters; the exit signal; the exit code. `refine` adds what only the app can see: the words
that the engine wrote last.
"""

from dataclasses import dataclass

import msgspec

from app.core.lifecycle import ExitCause
from app.guard.child import ExitStatus
from app.guard.protocol import EXIT_ALLOCATION_FAILED, Exited

_CRASH_SIGNALS = frozenset({4, 5, 6, 7, 8, 11, 31})
_ALLOCATION_WORDS = (
    "std::bad_alloc",
    "bad allocation",
    "MemoryError",
    "Cannot allocate memory",
    "failed to allocate",
    "unable to allocate",
    "cudaMalloc failed",
    "out of memory",
    "ErrorOutOfDeviceMemory",
    "ErrorOutOfHostMemory",
)


@dataclass(frozen=True, slots=True)
class KillRecord:
    """That we ended a worker, and why.

    Attributes:
        oom_kills: the group's counter just before our signal: above 0, the kernel was first.
        at_s: monotonic, when the signal was sent.
    """

    cause: ExitCause
    sentence: str
    oom_kills: int = -1
    line_bytes: int = 0
    at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Cause:
    cause: ExitCause
    note: str


def name_cause(
    record: KillRecord | None, status: ExitStatus, machine_oom_kills_delta: int
) -> Cause:
    """The cause and what shows it.

    Args:
        record: our own kill, if there was one.
        status: how the process ended.
        machine_oom_kills_delta: kernel kills on the whole machine since the last sample before.
    """
    by_sigkill = status.exit_signal == 9
    if record is not None and by_sigkill and record.oom_kills <= 0:
        return Cause(record.cause, "")
    if by_sigkill and status.group_oom_kills > 0:
        return Cause(
            ExitCause.KERNEL_OOM,
            f"Its control group counts {status.group_oom_kills} out-of-memory kill(s).",
        )
    if by_sigkill and machine_oom_kills_delta > 0:
        return Cause(
            ExitCause.KERNEL_OOM,
            f"The kernel counts {machine_oom_kills_delta} out-of-memory kill(s) at that moment.",
        )
    if by_sigkill:
        return Cause(ExitCause.UNKNOWN, "Neither Coolhead nor the kernel's memory limit did it.")
    if status.exit_signal in _CRASH_SIGNALS:
        return Cause(ExitCause.CRASHED, "")
    if status.exit_signal is not None:
        return Cause(ExitCause.UNKNOWN, "Another program sent it.")
    if status.exit_code == EXIT_ALLOCATION_FAILED:
        return Cause(ExitCause.ALLOCATION_FAILED, "")
    return Cause(ExitCause.EXITED, "")


def refine(exited: Exited, last_words: str) -> Exited:
    """Names a failed allocation that only the engine's own output shows.

    Args:
        exited: what the guard reported.
        last_words: the end of the worker's log.
    """
    failed_itself = exited.cause in {ExitCause.CRASHED, ExitCause.EXITED, ExitCause.UNKNOWN}
    if not failed_itself or exited.evidence.exit_code == 0 or exited.evidence.exit_signal == 9:
        return exited
    for line in reversed(last_words.splitlines()):
        if any(word in line for word in _ALLOCATION_WORDS):
            said = line.strip()[-200:].rstrip(".") + "."  # more may be said after it
            return msgspec.structs.replace(
                exited,
                cause=ExitCause.ALLOCATION_FAILED,
                sentence=f"{exited.sentence} Memory could not be allocated; it said: {said}",
            )
    return exited
