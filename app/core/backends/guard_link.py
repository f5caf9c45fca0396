"""What the backends ask of the guard: the part of `guard.client.GuardClient` that they use.

One seam, so that tests put a guard of their own here.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from app.core.lifecycle import ExitCause
from app.guard.protocol import Exited, Launch, Launched, Ready, Samples, Verdict

GuardMessage: TypeAlias = Exited | Samples | Verdict


class LaunchedWorker(Protocol):
    """`pidfd` is negative where the system has none; whoever receives it closes it."""

    @property
    def message(self) -> Launched: ...
    @property
    def pidfd(self) -> int: ...


class GuardLink(Protocol):
    """Thread: core loop."""

    async def start(self) -> Ready: ...
    async def launch(
        self, launch: Launch, stdin_fd: int, stdout_fd: int, stderr_fd: int
    ) -> LaunchedWorker: ...
    async def kill(self, worker_id: str, cause: ExitCause, note: str = "") -> Exited | None: ...
    def send_activity(
        self, worker_id: str, *, is_loading: bool, in_flight: int, last_used_s: float
    ) -> None: ...
    def send_done(self, verdict_id: int, *, ok: bool, note: str = "") -> None: ...
    async def stop(self) -> None: ...
    @property
    def pid(self) -> int: ...


GuardFactory: TypeAlias = Callable[
    [Callable[[GuardMessage], None], Callable[[str], None]], GuardLink
]
