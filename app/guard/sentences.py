"""What the guard says to people: what happened, with the numbers, in one or two sentences. Pure."""

from app.core.lifecycle import CapKind, ExitCause
from app.guard.census import LEAST_BYTES
from app.guard.child import ExitStatus
from app.guard.lines import GIB, MIB
from app.guard.readings import Reading, WorkerReading

SIGNAL_NAMES = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}


def size(count_bytes: int) -> str:
    """1.5 GiB, 384 MiB."""
    if abs(count_bytes) >= GIB:
        return f"{count_bytes / GIB:.1f} GiB"
    return f"{count_bytes / MIB:.0f} MiB"


def name(worker: WorkerReading) -> str:
    return worker.model_id or worker.worker_id


def cap_exceeded(worker: WorkerReading, expected_bytes: int) -> str:
    if worker.own_bytes >= worker.cap_own_bytes:
        what = f"had taken {size(worker.own_bytes)} of memory"
    else:
        what = (
            f"had taken {size(worker.own_bytes)} of memory and was growing so fast that it would have "
            f"reached {size(expected_bytes)}"
        )
    planned = f", planned {size(worker.planned_own_bytes)}" if worker.planned_own_bytes else ""
    return f"{name(worker)} was stopped: it {what} (cap {size(worker.cap_own_bytes)}{planned})."


def available(reading: Reading) -> str:
    return f"{size(reading.available_bytes)} of {size(reading.total_bytes)} memory available"


def blame(reading: Reading) -> str:
    """Who took the memory lately: a model of ours, if that grew more than any other program."""
    ours = max(reading.workers, key=lambda worker: worker.grown_bytes, default=None)
    if ours is None or ours.grown_bytes <= max(reading.grown_bytes, LEAST_BYTES):
        return _program(reading)
    if ours.is_loading:
        return f" {name(ours)} is being loaded and has taken {size(ours.grown_bytes)}."
    return f" {name(ours)}, loaded a moment ago, has taken {size(ours.grown_bytes)}."


def _program(reading: Reading) -> str:
    if not reading.grown_program:
        return ""
    return f" {reading.grown_program} grew by {size(reading.grown_bytes)}."


def machine_is_low(reading: Reading, line: int) -> str:
    return f"Only {available(reading)} (line {size(line)}).{blame(reading)}"


def stalled(reading: Reading, stalled_s: float) -> str:
    return (
        f"Programs waited {stalled_s * 1000:.0f} ms of the last second for memory, with "
        f"{available(reading)}.{blame(reading)}"
    )


def near_cap(worker: WorkerReading) -> str:
    return f"{name(worker)} has taken {size(worker.own_bytes)} of its cap of {size(worker.cap_own_bytes)}."


def swapping(worker: WorkerReading) -> str:
    return f"{size(worker.swap_bytes)} of {name(worker)} went to swap."


def thrashing(worker: WorkerReading, rate_bytes_per_s: float) -> str:
    return (
        f"{name(worker)} reads {size(int(rate_bytes_per_s))} a second of its weights again: they do not "
        "stay in memory."
    )


def gpu_over(worker: WorkerReading, device: str, taken_bytes: int, cap_bytes: int) -> str:
    return f"{name(worker)} has taken {size(taken_bytes)} of {device} (cap {size(cap_bytes)})."


def spilling(worker: WorkerReading, grown_bytes: int) -> str:
    return (
        f"{size(grown_bytes)} of {name(worker)}'s GPU memory lies in main memory: the GPU is full."
    )


def stopped(worker: WorkerReading, why: str) -> str:
    return f"{name(worker)} was stopped. {why}"


def not_cancelled(worker: WorkerReading, why: str, deadline_s: float) -> str:
    return f"{name(worker)} was stopped: its answer did not end within {deadline_s:.1f} s. {why}"


def gives_back(worker: WorkerReading) -> str:
    return f"Stopping it gives back {size(worker.own_bytes)}."


def unload(worker: WorkerReading, why: str) -> str:
    return f"{name(worker)} is idle and is unloaded ({size(worker.own_bytes)}). {why}"


def not_ours(reading: Reading, line: int) -> str:
    return (
        f"Only {available(reading)} (line {size(line)}), and stopping a model would not help: other "
        f"programs take it.{_program(reading)} Close something you do not need."
    )


def asked(kills: int, window_s: float) -> str:
    return (
        f"Models were stopped {kills} times in {window_s / 60:.0f} minutes for want of memory. Nothing "
        "is loaded again until you ask; choose a smaller model or a shorter context."
    )


def relieved(reading: Reading) -> str:
    return f"Memory is fine again: {available(reading)}."


def asked_to_stop(model: str, cause: ExitCause) -> str:
    """For a worker that the app had us stop without words of its own."""
    why = {
        ExitCause.STOPPED_BY_USER: "as you asked",
        ExitCause.UNLOADED: "to give its memory back",
        ExitCause.APP_GONE: "as Coolhead ended",
    }
    return f"{model} was stopped {why.get(cause, f'({cause})')}."


def exited(model: str, cause: ExitCause, status: ExitStatus, note: str, limit_bytes: int) -> str:
    """For a worker that the guard did not stop itself."""
    if cause is ExitCause.KERNEL_OOM:
        limit = f" (limit {size(limit_bytes)})" if limit_bytes else ""
        return f"{model} was stopped by the kernel for want of memory{limit}. {note}".rstrip()
    if cause is ExitCause.ALLOCATION_FAILED:
        limit = f" under its limit of {size(limit_bytes)}" if limit_bytes else ""
        return f"{model} ended: it could not get the memory it asked for{limit}. {note}".rstrip()
    if status.exit_signal is not None:
        number = status.exit_signal
        signal_name = SIGNAL_NAMES.get(number, f"signal {number}")
        verb = "crashed with" if cause is ExitCause.CRASHED else "was ended by"
        return f"{model} {verb} {signal_name}. {note}".rstrip()
    return f"{model} ended by itself with exit code {status.exit_code}. {note}".rstrip()


def cap_kind(kind: CapKind) -> str:
    return {
        CapKind.SYSTEMD_SCOPE: "a systemd scope",
        CapKind.CGROUP_V2: "a control group",
        CapKind.CGROUP_V1: "a control group (v1)",
        CapKind.JOB_OBJECT: "a Job Object",
        CapKind.RLIMIT_DATA: "RLIMIT_DATA",
        CapKind.WATCH_ONLY: "the guard's watch alone",
    }[kind]
