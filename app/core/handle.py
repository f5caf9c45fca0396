"""What the UI and the command line hold of the core: commands in, immutable snapshots out.

Thread: every method may be called from any thread. The core loop is the one writer of the snapshot.
"""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from app.core.errors import NotRunning
from app.core.events import Event, EventBus
from app.core.lifecycle import AppState, CapKind, PressureLevel, WorkerState
from app.core.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    """One model's worker. Sizes in bytes; `planned` and `taken` per device ("RAM", "CUDA0")."""

    model_id: str
    state: WorkerState
    pid: int = 0
    engine: str = ""
    context_tokens: int = 0
    slots: int = 0
    in_flight: int = 0
    queued: int = 0
    tokens_per_s: float = 0.0
    load_fraction: float = 0.0
    planned_bytes: Mapping[str, int] = field(default_factory=dict)
    taken_bytes: Mapping[str, int] = field(default_factory=dict)
    own_bytes: int = 0
    cap_bytes: int = 0
    kernel_limit_bytes: int = 0
    cap_kind: CapKind = CapKind.WATCH_ONLY
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelSummary:
    model_id: str
    path: str
    size_bytes: int
    context_tokens: int = 0
    is_loaded: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that is shown, as it was probed. `version` rises with each change."""

    version: int = 0
    state: AppState = AppState.STOPPED
    reason: str = ""
    endpoint: str = ""
    is_paused: bool = False
    pause_sentence: str = ""
    pressure: PressureLevel = PressureLevel.NORMAL
    pressure_sentence: str = ""
    pid: int = 0
    guard_pid: int = 0
    cap_kind: CapKind = CapKind.WATCH_ONLY
    is_safe_mode: bool = False
    safe_mode_sentence: str = ""
    in_flight: int = 0
    queued: int = 0
    tokens_per_s: float = 0.0
    ram_total_bytes: int = 0
    ram_available_bytes: int = 0
    workers: tuple[WorkerSnapshot, ...] = ()
    models: tuple[ModelSummary, ...] = ()
    settings: Settings = field(default_factory=Settings)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """Something asked of the core, in the imperative."""


@dataclass(frozen=True, slots=True)
class Start(Command):
    """Open the endpoint."""


@dataclass(frozen=True, slots=True)
class Stop(Command):
    """Drain, unload everything, close the port; the app stays."""


@dataclass(frozen=True, slots=True)
class Pause(Command):
    """Keep the port, answer new requests with 503."""

    is_paused: bool


@dataclass(frozen=True, slots=True)
class Quit(Command):
    """Stop, end every worker and the guard, verify it, and end the process."""


@dataclass(frozen=True, slots=True)
class LoadModel(Command):
    model_id: str


@dataclass(frozen=True, slots=True)
class UnloadModel(Command):
    model_id: str


@dataclass(frozen=True, slots=True)
class ApplySettings(Command):
    """Check, save and carry out changes (dotted key to value); reloads drain first."""

    changes: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ReloadRoutes(Command):
    pass


@dataclass(frozen=True, slots=True)
class ShowWindow(Command):
    """Raise the tray's window; sent by a second start."""


@dataclass(frozen=True, slots=True)
class LeaveSafeMode(Command):
    pass


class Handle:
    """Thread: any. Built by `composition` on the core loop's thread, before anyone holds it.

    Args:
        loop: the core loop.
        carry_out: the core's own executor of commands; runs on the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        events: EventBus,
        carry_out: Callable[[Command], Awaitable[object]],
    ) -> None:
        self._loop = loop
        self._events = events
        self._carry_out = carry_out
        self._snapshot = Snapshot()

    @property
    def snapshot(self) -> Snapshot:
        """The newest snapshot; reading a reference needs no lock."""
        return self._snapshot

    def put(self, snapshot: Snapshot) -> None:
        """Thread: core loop only, its one writer."""
        self._snapshot = snapshot

    def submit(self, command: Command) -> concurrent.futures.Future[object]:
        """Sends a command; the future has its result, or the `CoolheadError` that stopped it.

        Raises:
            NotRunning: when the core loop has ended.
        """

        async def run() -> object:
            return await self._carry_out(command)

        running = run()
        try:
            return asyncio.run_coroutine_threadsafe(running, self._loop)
        except RuntimeError as error:  # the loop is closed
            running.close()
            raise NotRunning("The core has ended; start Coolhead again.") from error

    def subscribe(self, callback: Callable[[Event], None]) -> None:
        """`callback` is called on the core loop for each event; it must return at once."""
        self._loop.call_soon_threadsafe(self._events.subscribe, callback)
