"""Tells when the slots of requests that were broken off are idle again, as the worker itself says.

A prefill runs on for seconds after its client has left. One per ready worker, core loop only.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from app.core.errors import WorkerError
from app.core.router.worker_client import WorkerClient

_log = logging.getLogger(__name__)

FIRST_LOOK_S = 0.02
LAST_LOOK_S = 0.5
LONGEST_S = 300.0


class _Slot(msgspec.Struct):
    is_processing: bool = False


_decoder = msgspec.json.Decoder(list[_Slot])


class SlotWatch:
    """Counts requests at the worker; those broken off are settled, oldest first, as slots turn idle.

    Thread: core loop only. Runs a task only while something was broken off.
    """

    def __init__(self, client: WorkerClient, slots: int) -> None:
        self._client = client
        self._slots = slots
        self._active = 0
        self._leaving: deque[Callable[[], None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def take(self) -> None:
        """A request is sent to the worker."""
        self._active += 1

    def drop(self) -> None:
        """A request has ended, and the worker with it."""
        self._active -= 1

    def await_idle(self, settle: Callable[[], None]) -> None:
        """A request was broken off; `settle` is called once its slot is idle."""
        self._active -= 1
        self._leaving.append(settle)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look(), name="slot watch")

    def close(self) -> None:
        """The worker has ended: all its slots are free."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._settle(len(self._leaving))

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LONGEST_S
        pause_s = FIRST_LOOK_S
        while self._leaving:
            busy = await self._busy()
            spare = self._active + len(self._leaving) - busy
            if loop.time() > until_s:
                _log.warning("slots are still busy %.0f s after their clients left", LONGEST_S)
                spare = len(self._leaving)
            if spare > 0:
                self._settle(min(spare, len(self._leaving)))
                pause_s = FIRST_LOOK_S
            if self._leaving:
                await asyncio.sleep(pause_s)
                pause_s = min(LAST_LOOK_S, pause_s * 1.5)
        self._task = None

    async def _busy(self) -> int:
        """How many slots work; all, where the worker does not say."""
        try:
            async with asyncio.timeout(5):
                response = await self._client.request("GET", "/slots")
                body = await response.read()
            if response.status != 200:
                return 0
            return sum(slot.is_processing for slot in _decoder.decode(body))
        except (WorkerError, TimeoutError, msgspec.DecodeError):
            return self._slots

    def _settle(self, count: int) -> None:
        for _ in range(count):
            self._leaving.popleft()()
