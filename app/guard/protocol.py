"""The messages between the app and the guard, and how they are packed. Pure.

One message a packet: MessagePack of a tagged struct. File descriptors travel beside the packet
(AF_UNIX SEQPACKET; on Windows as duplicated handles), in the order that the message names.
"""

from typing import TypeAlias

import msgspec

from app.core.lifecycle import CapKind, ExitCause, PressureLevel

PACKET_BYTES = 256 * 1024
"""Largest packet; environments and samples stay far below it."""

EXIT_ALLOCATION_FAILED = 12
"""Exit code of our own worker programs when memory was refused (ENOMEM's number)."""

HEARTBEAT_S = 1.0
"""Each side sends one this often; see `watchdog` and `client` for what silence means."""


class Caps(msgspec.Struct, frozen=True):
    """What a worker may take, in bytes.

    `own` is anonymous plus shared plus swapped memory (RssAnon + RssShmem + VmSwap), the guard's own
    line; `mapped` the weights it maps from a file. The kernel's line lies above: see `cap_<os>`.
    `planned_own` is the plan's figure that `own` was made from. 0 for a GPU means unlimited.
    """

    own_bytes: int
    mapped_bytes: int = 0
    planned_own_bytes: int = 0
    threads: int = 1
    gpu_bytes: dict[str, int] = {}


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    """App to guard, with the worker's stdin, stdout and stderr as three descriptors."""

    worker_id: str
    model_id: str
    argv: list[str]
    env: dict[str, str]
    cwd: str
    caps: Caps


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    """App to guard: end this worker's whole tree now, for this reason."""

    worker_id: str
    cause: ExitCause
    note: str = ""


class Activity(msgspec.Struct, frozen=True, tag="activity"):
    """App to guard: what a worker is doing, for the cadence and for the choice of a victim."""

    worker_id: str
    is_loading: bool
    in_flight: int
    last_used_s: float
    """Monotonic seconds."""


class Closing(msgspec.Struct, frozen=True, tag="closing"):
    """App to guard: kill what is left and exit."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """Either way. `sent_s` is monotonic."""

    sent_s: float


class Done(msgspec.Struct, frozen=True, tag="done"):
    """App to guard: a step that a verdict asked for was carried out (or could not be)."""

    verdict_id: int
    ok: bool
    note: str = ""


class CapReport(msgspec.Struct, frozen=True):
    """What the kernel enforces on a worker, read back after it was set.

    `tried` names what was tried before, each with the reason it did not hold.
    """

    kind: CapKind
    limit_bytes: int
    swap_forbidden: bool
    tried: list[str] = []


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Guard to app: it runs; `cap_kind` is what it expects to be able to enforce."""

    pid: int
    cap_kind: CapKind
    tried: list[str] = []


class Launched(msgspec.Struct, frozen=True, tag="launched"):
    """Guard to app, with the worker's pidfd beside it where the system has one."""

    worker_id: str
    pid: int
    start_time: float
    """Kernel's start time of the process (clock ticks on Linux), to tell a reused pid."""
    cap: CapReport


class LaunchFailed(msgspec.Struct, frozen=True, tag="launch_failed"):
    worker_id: str
    reason: str


class Evidence(msgspec.Struct, frozen=True):
    """The figures behind a cause, in bytes where it is memory."""

    own_bytes: int = 0
    own_peak_bytes: int = 0
    mapped_bytes: int = 0
    swap_bytes: int = 0
    cap_bytes: int = 0
    kernel_limit_bytes: int = 0
    available_bytes: int = 0
    total_bytes: int = 0
    line_bytes: int = 0
    exit_code: int | None = None
    exit_signal: int | None = None
    kernel_oom_kills: int = 0
    killed_at_s: float = 0.0
    """Monotonic, when the guard sent its signal; 0 when it sent none."""
    note: str = ""


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """Guard to app: the worker is reaped; `sentence` says why, with the numbers, for people."""

    worker_id: str
    pid: int
    cause: ExitCause
    sentence: str
    evidence: Evidence
    samples: list["WorkerSample"] = []
    """The last 5 s before the end."""


class WorkerSample(msgspec.Struct, frozen=True):
    worker_id: str
    at_s: float
    own_bytes: int
    mapped_bytes: int
    swap_bytes: int
    resident_bytes: int
    gpu_bytes: dict[str, int] = {}


class Samples(msgspec.Struct, frozen=True, tag="samples"):
    """Guard to app, at most 4 a second."""

    at_s: float
    available_bytes: int
    total_bytes: int
    swap_used_bytes: int
    level: PressureLevel
    workers: list[WorkerSample]


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """Guard to app: the level changed or a step is due.

    `step` is one of: admit, close_admission, drop_caches, unload_idle, cancel_newest, killed, ask_user.
    The app answers with `Done` within `deadline_s`, or the guard goes on without it.
    """

    verdict_id: int
    level: PressureLevel
    step: str
    cause: ExitCause | None
    sentence: str
    worker_id: str = ""
    needed_bytes: int = 0
    deadline_s: float = 0.0
    kills_in_window: int = 0
    """With `killed`: kills for memory within the last ten minutes, this one included."""


ToGuard: TypeAlias = Launch | Kill | Activity | Closing | Heartbeat | Done
ToApp: TypeAlias = Ready | Launched | LaunchFailed | Exited | Samples | Verdict | Heartbeat

_encoder = msgspec.msgpack.Encoder()
_to_guard = msgspec.msgpack.Decoder(ToGuard)
_to_app = msgspec.msgpack.Decoder(ToApp)


def encode(message: ToGuard | ToApp) -> bytes:
    """One packet's bytes."""
    return _encoder.encode(message)


def decode_to_guard(packet: bytes) -> ToGuard:
    """Raises: msgspec.DecodeError for bytes that are no message."""
    return _to_guard.decode(packet)


def decode_to_app(packet: bytes) -> ToApp:
    """Raises: msgspec.DecodeError for bytes that are no message."""
    return _to_app.decode(packet)
