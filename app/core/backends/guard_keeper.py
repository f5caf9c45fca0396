"""Keeps a guard running: starts it, hears that it is lost, and starts the next one.

Owned by the supervisor, on the core loop. Without a guard nothing is loaded.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from app.core.backends.guard_link import GuardFactory, GuardLink, GuardMessage
from app.core.errors import GuardError
from app.core.events import EventBus, GuardChanged
from app.guard.protocol import Ready

_log = logging.getLogger(__name__)

RESTART_DELAYS_S = (0.0, 0.5, 2.0, 5.0, 15.0)
"""Between attempts; after the last one nothing is tried until something is to be loaded."""


class GuardKeeper:
    """Thread: core loop.

    Args:
        on_message: hears what the guard says.
        on_lost: told the reason before a new guard is started.
    """

    def __init__(
        self,
        make: GuardFactory,
        on_message: Callable[[GuardMessage], None],
        on_lost: Callable[[str], None],
        events: EventBus,
    ) -> None:
        self._make = make
        self._on_message = on_message
        self._on_lost = on_lost
        self._events = events
        self._link: GuardLink | None = None
        self._ready: Ready | None = None
        self._restart: asyncio.Task[None] | None = None
        self._is_stopped = True

    @property
    def link(self) -> GuardLink | None:
        """The running guard; None while there is none."""
        return self._link

    @property
    def ready(self) -> Ready | None:
        """What the running guard said of itself: its pid and what it can enforce."""
        return self._ready

    @property
    def pid(self) -> int:
        return self._ready.pid if self._ready else 0

    async def start(self) -> None:
        """Raises: GuardError."""
        self._is_stopped = False
        if self._link is None:
            await self._start_one()

    async def running(self) -> GuardLink:
        """The guard, once it runs. Raises: GuardError when none can be started."""
        if self._restart is not None:
            await asyncio.shield(self._restart)
        if self._link is None:
            if self._is_stopped:
                raise GuardError("The guard is stopped, so no model is loaded.")
            await self._start_one()
        assert self._link is not None
        return self._link

    async def stop(self) -> None:
        """Ends the guard and every worker that is left; no new one is started."""
        self._is_stopped = True
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.wait([self._restart])
            self._restart = None
        link, self._link, self._ready = self._link, None, None
        if link is not None:
            await link.stop()

    async def _start_one(self) -> None:
        link = self._make(self._on_message, lambda reason: self._lost(link, reason))
        self._ready = await link.start()
        self._link = link
        self._say(True, f"The guard runs (pid {self._ready.pid}).")

    def _lost(self, link: GuardLink, reason: str) -> None:
        if self._link is not link:
            return
        self._link = None
        self._ready = None
        self._on_lost(reason)
        if self._is_stopped:
            return
        _log.error("the guard was lost: %s", reason)
        self._say(False, f"The guard was lost ({reason}); its workers ended with it.")
        self._restart = asyncio.get_running_loop().create_task(self._start_again(), name="guard")

    async def _start_again(self) -> None:
        try:
            for delay_s in RESTART_DELAYS_S:
                await asyncio.sleep(delay_s)
                try:
                    await self._start_one()
                    return
                except GuardError as error:
                    _log.error("the guard did not start: %s", error)
        finally:
            self._restart = None

    def _say(self, is_running: bool, sentence: str) -> None:
        self._events.publish(GuardChanged(is_running, sentence, at=time.time()))
