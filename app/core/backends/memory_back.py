"""Waits until the memory of a worker that has ended is seen to be available again.

Owned by the supervisor, on the core loop. The kernel frees some 100 ms a GiB after the kill, GPU
drivers later; a load that is judged before that would be refused, or would go over.
"""

import asyncio
from collections.abc import Callable

from app.core.hardware.machine import Machine

LEAST_BYTES = 256 * 1024 * 1024
"""Less than this is lost in what other programs take and give meanwhile, and changes no verdict."""

DEADLINE_S = 5.0
LOOK_S = 0.05
SHARE = 0.8
"""Of what a worker owned, seen in what is available again; the rest may be anyone's by then."""


class MemoryBack:
    """Thread: core loop.

    Args:
        machine: reads the machine's memory; blocking, so it is called in an executor.
        clock: monotonic seconds.
    """

    def __init__(self, machine: Callable[[], Machine], clock: Callable[[], float]) -> None:
        self._machine = machine
        self._clock = clock
        self._due_bytes = 0
        self._until_s = 0.0

    def expect(self, available_bytes: int, freed_bytes: int) -> None:
        """A worker that owned `freed_bytes` ended when so much was available."""
        if freed_bytes < LEAST_BYTES:
            return
        self._due_bytes = max(self._due_bytes, available_bytes + int(freed_bytes * SHARE))
        self._until_s = self._clock() + DEADLINE_S

    async def wait(self) -> None:
        """Returns once it is there, or after a few seconds: other programs may have taken it."""
        while self._due_bytes and self._clock() < self._until_s:
            machine = await asyncio.to_thread(self._machine)
            if machine.ram_available_bytes >= self._due_bytes:
                break
            await asyncio.sleep(LOOK_S)
        self._due_bytes = 0
