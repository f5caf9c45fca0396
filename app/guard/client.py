"""The app's end of the link: starts the guard, asks for workers, hears how they fare.

Used by the supervisor and the composition on the core loop. It does not start a lost guard again: it
says so through `on_lost`, and the caller makes a new client. With the guard gone its workers are gone
too, by the kernel.
"""

import asyncio
import contextlib
import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from app.core.errors import GuardError
from app.core.lifecycle import ExitCause
from app.guard.causes import refine
from app.guard.command import guard_command, own_environment
from app.guard.link import LinkClosed, close_descriptors
from app.guard.options import GuardOptions, encode_options
from app.guard.protocol import (
    HEARTBEAT_S,
    Activity,
    Caps,
    Closing,
    Done,
    Exited,
    Heartbeat,
    Kill,
    Launch,
    Launched,
    LaunchFailed,
    Ready,
    Samples,
    ToGuard,
    Verdict,
    decode_to_app,
    encode,
)
from app.guard.start_guard import ClientLink, Words, start_guard

logger = logging.getLogger(__name__)

START_DEADLINE_S = 20.0
LAUNCH_DEADLINE_S = 30.0
KILL_DEADLINE_S = 20.0
STOP_DEADLINE_S = 8.0
SILENCE_S = 30.0
"""A guard that says nothing for this long, while we ourselves run, is taken for lost. Long, as a
guard that was only stopped for a while (a debugger, a laptop's lid) must not cost the workers."""

FromGuard: TypeAlias = Exited | Samples | Verdict


@dataclass(frozen=True, slots=True)
class LaunchedWorker:
    """A started worker; `pidfd` is the receiver's to close, -1 where the system has none."""

    message: Launched
    pidfd: int


class GuardClient:
    """One guard process and the link to it. Thread: the core loop.

    Args:
        on_message: called with every `Exited`, `Samples` and `Verdict`.
        on_lost: called once, with a sentence, when the guard ended without having been asked to.
        options: what the guard may do; for tests.
    """

    def __init__(
        self,
        on_message: Callable[[FromGuard], None],
        on_lost: Callable[[str], None],
        options: GuardOptions | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._options = options or GuardOptions()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: ClientLink | None = None
        self._words: Words | None = None
        self._last_line = ""
        self._ready: Ready | None = None
        self._ready_future: asyncio.Future[Ready] | None = None
        self._launches: dict[str, asyncio.Future[LaunchedWorker]] = {}
        self._exits: dict[str, list[asyncio.Future[Exited]]] = {}
        self._alive: set[str] = set()
        self._is_stopping = False
        self._is_lost = False
        self._heard_s = 0.0
        self._beat_s = 0.0
        self._beat: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """The guard's process id, 0 when there is none."""
        return self._process.pid if self._process and not self._is_lost else 0

    @property
    def ready(self) -> Ready | None:
        return self._ready

    @property
    def is_alive(self) -> bool:
        return self._ready is not None and not self._is_lost and not self._is_stopping

    async def start(self) -> Ready:
        """Starts the guard and waits until it runs.

        Raises:
            GuardError: when it does not come up; nothing is left of it then.
        """
        if self._process is not None:
            raise GuardError("This guard was started before.")
        loop = asyncio.get_running_loop()
        try:
            started = await loop.run_in_executor(
                None, start_guard, guard_command(), encode_options(self._options)
            )
        except OSError as error:
            raise GuardError(f"The guard could not be started: {error}") from error
        self._process, self._link = started.process, started.link
        self._words = Words(started.words, self._said)
        self._ready_future = loop.create_future()
        self._link.attach(loop, self._readable)
        self._heard_s = self._beat_s = time.monotonic()
        try:
            async with asyncio.timeout(START_DEADLINE_S):
                self._ready = await self._ready_future
        except TimeoutError:
            await self._end_process()
            raise GuardError(
                f"The guard did not come up within {START_DEADLINE_S:.0f} s."
            ) from None
        except GuardError:
            await self._end_process()
            raise
        self._schedule_beat()
        return self._ready

    async def launch(
        self, launch: Launch, stdin_fd: int, stdout_fd: int, stderr_fd: int
    ) -> LaunchedWorker:
        """Starts a worker under its cap; the caller keeps (and closes) its descriptors.

        Raises:
            GuardError: when there is no guard, or the worker could not be started.
        """
        if launch.worker_id in self._launches or launch.worker_id in self._alive:
            raise GuardError(f"A worker called {launch.worker_id} runs already.")
        future: asyncio.Future[LaunchedWorker] = asyncio.get_running_loop().create_future()
        self._launches[launch.worker_id] = future
        try:
            self._send(launch, (stdin_fd, stdout_fd, stderr_fd))
            async with asyncio.timeout(LAUNCH_DEADLINE_S):
                return await future
        except TimeoutError:
            raise GuardError("The guard did not start the worker in time.") from None
        finally:
            self._launches.pop(launch.worker_id, None)

    async def kill(
        self, worker_id: str, cause: ExitCause = ExitCause.STOPPED_BY_USER, note: str = ""
    ) -> Exited | None:
        """Ends a worker's whole tree and waits until it is reaped; None if there was none.

        Raises:
            GuardError: when the guard does not answer in time.
        """
        if worker_id not in self._alive:
            return None
        future: asyncio.Future[Exited] = asyncio.get_running_loop().create_future()
        self._exits.setdefault(worker_id, []).append(future)
        self._send(Kill(worker_id, cause, note))
        try:
            async with asyncio.timeout(KILL_DEADLINE_S):
                return await future
        except TimeoutError:
            raise GuardError(f"Worker {worker_id} did not end in time.") from None

    def send_activity(
        self, worker_id: str, *, is_loading: bool, in_flight: int, last_used_s: float
    ) -> None:
        """Says what a worker is doing; without a guard nothing happens."""
        with contextlib.suppress(GuardError):
            self._send(Activity(worker_id, is_loading, in_flight, last_used_s))

    def send_done(self, verdict_id: int, *, ok: bool, note: str = "") -> None:
        """Answers a verdict's step."""
        with contextlib.suppress(GuardError):
            self._send(Done(verdict_id, ok, note))

    async def stop(self) -> None:
        """Ends every worker and the guard, and waits until it is gone."""
        self._is_stopping = True
        if self._process is None:
            return
        with contextlib.suppress(GuardError):
            self._send(Closing())
        loop = asyncio.get_running_loop()
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            await loop.run_in_executor(None, lambda: process.wait(STOP_DEADLINE_S))
        await self._end_process()

    async def _end_process(self) -> None:
        self._is_stopping = True
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            loop = asyncio.get_running_loop()
            with contextlib.suppress(subprocess.TimeoutExpired):
                await loop.run_in_executor(None, lambda: process.wait(STOP_DEADLINE_S))
        if self._link is not None:
            self._readable()
        self._let_go()

    # -- the link ---------------------------------------------------------------------------------

    def _send(self, message: ToGuard, descriptors: Sequence[int] = ()) -> None:
        if self._link is None or self._is_lost:
            raise GuardError("The guard is not running, so no model can be loaded.")
        try:
            self._link.send(encode(message), descriptors)
        except LinkClosed as error:
            raise GuardError(f"The guard is gone: {error}") from error

    def _readable(self) -> None:
        if self._link is None:
            return
        try:
            packets = self._link.receive()
        except LinkClosed as error:
            self._lost(f"The guard ended ({error}).")
            return
        self._heard_s = time.monotonic()
        for packet in packets:
            try:
                message = decode_to_app(packet.data)
            except msgspec.DecodeError:
                logger.warning("a packet of the guard's is no message")
                close_descriptors(packet.descriptors)
                continue
            if isinstance(message, Launched):
                self._launched(message, packet.descriptors)
                continue
            close_descriptors(packet.descriptors)
            if isinstance(message, Ready):
                if self._ready_future is not None and not self._ready_future.done():
                    self._ready_future.set_result(message)
            elif isinstance(message, LaunchFailed):
                waiting = self._launches.get(message.worker_id)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(GuardError(message.reason))
            elif not isinstance(message, Heartbeat):
                self._tell(message)

    def _launched(self, message: Launched, descriptors: tuple[int, ...]) -> None:
        self._alive.add(message.worker_id)
        waiting = self._launches.get(message.worker_id)
        if waiting is None or waiting.done():
            # Nobody waits for it any more: it must not live on unseen.
            close_descriptors(descriptors)
            with contextlib.suppress(GuardError):
                self._send(Kill(message.worker_id, ExitCause.UNLOADED, "No longer wanted."))
            return
        waiting.set_result(LaunchedWorker(message, descriptors[0] if descriptors else -1))

    def _tell(self, message: FromGuard) -> None:
        if isinstance(message, Exited):
            self._alive.discard(message.worker_id)
            for waiting in self._exits.pop(message.worker_id, []):
                if not waiting.done():
                    waiting.set_result(message)
        try:
            self._on_message(message)
        except Exception:
            logger.exception("a message of the guard's could not be handled")

    def _lost(self, reason: str) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        error = GuardError(f"{reason} Its workers ended with it.")
        waiting: list[asyncio.Future[LaunchedWorker]] = list(self._launches.values())
        for launch in waiting:
            if not launch.done():
                launch.set_exception(error)
        for futures in self._exits.values():
            for one in futures:
                if not one.done():
                    one.set_exception(error)
        self._exits.clear()
        self._alive.clear()
        if self._ready_future is not None and not self._ready_future.done():
            if self._words is not None:
                self._words.read()
            self._ready_future.set_exception(GuardError(f"{reason} {self._last_line}".strip()))
            return
        if self._is_stopping:
            return
        process = self._process
        self._let_go()
        if process is not None and process.poll() is None:
            # The link can only close when it ends; should it hang at that, its end is its workers'.
            asyncio.get_running_loop().call_later(1.0, _kill_and_reap, process)
        self._on_lost(reason)

    def _let_go(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
            self._beat = None
        if self._link is not None:
            self._link.detach()
            self._link.close()
            self._link = None
        if self._words is not None:
            self._words.read()
            self._words.close()
            self._words = None
        self._is_lost = True

    # -- heartbeat and words ----------------------------------------------------------------------

    def _schedule_beat(self) -> None:
        self._beat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._on_beat)

    def _on_beat(self) -> None:
        now_s = time.monotonic()
        own_gap_s = now_s - self._beat_s
        self._beat_s = now_s
        if own_gap_s > 3 * HEARTBEAT_S:
            self._heard_s = now_s  # it was us who slept
        if now_s - self._heard_s > SILENCE_S:
            process = self._process
            if process is not None:
                process.kill()
            self._lost(f"The guard said nothing for {SILENCE_S:.0f} s and was ended.")
            return
        with contextlib.suppress(GuardError):
            self._send(Heartbeat(now_s))
        self._schedule_beat()

    def _said(self, line: str) -> None:
        self._last_line = line
        logger.warning("guard: %s", line)


def _kill_and_reap(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(0.5)


__all__ = ["Caps", "GuardClient", "LaunchedWorker", "guard_command", "own_environment", "refine"]
