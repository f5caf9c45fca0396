"""A tiny process that ends the workers when the guard dies, where no kernel does it (macOS).

Started once by the guard, as `coolhead guard --keeper`, with a pipe whose other end only the guard
holds: when that closes, for whatever reason, every process group still on the list is killed.
"""

import contextlib
import os
import signal
from collections.abc import Callable

KILL_ROUNDS = 3
"""A group that forks while it is killed is caught by the next round."""


def follow(lines: str, alive: set[int]) -> None:
    """Notes what the guard said: `+PID` for a worker that started, `-PID` for one that is reaped."""
    for line in lines.splitlines():
        sign, number = line[:1], line[1:]
        if number.isdigit():
            (alive.add if sign == "+" else alive.discard)(int(number))


def keep(descriptor: int, kill_group: Callable[[int, int], None] | None = None) -> int:
    """Blocks until the guard is gone, then ends what is left; the exit status."""
    kill = kill_group or os.killpg
    alive: set[int] = set()
    rest = b""
    while piece := os.read(descriptor, 4096):
        whole, newline, rest = (rest + piece).rpartition(b"\n")
        follow((whole + newline).decode(), alive)
    for _ in range(KILL_ROUNDS):
        for group in alive:
            with contextlib.suppress(OSError):
                kill(group, signal.SIGKILL)
    return 0
