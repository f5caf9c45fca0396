"""The last lines that a worker printed, bounded, and its pipes read without blocking.

Used by `worker.py` on the core loop. A worker that floods its stderr costs its own time only: a
read takes one pipeful, and the ring keeps the last lines.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable

KEPT_LINES = 400
LINE_BYTES = 500
TOLD_LINES = 6
READ_BYTES = 64 * 1024
MOST_LAST_READS = 64
_TROUBLE = (b"error", b"fail", b"invalid", b"abort", b"exception", b" E ", b"out of memory")


class LogRing:
    """The newest `KEPT_LINES` lines, each cut at `LINE_BYTES`."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=KEPT_LINES)

    def add(self, line: bytes) -> None:
        self._lines.append(line[:LINE_BYTES])

    def lines(self) -> tuple[str, ...]:
        """All kept lines, oldest first."""
        return tuple(line.decode("utf-8", "replace") for line in self._lines)

    def trouble(self) -> tuple[str, ...]:
        """The last few lines that speak of trouble; the last few of all where none does."""
        found = [line for line in self._lines if any(word in line for word in _TROUBLE)]
        told = found or list(self._lines)
        return tuple(line.decode("utf-8", "replace").strip() for line in told[-TOLD_LINES:])


class PipeReader:
    """Calls `on_line` for each line of a pipe, on the core loop, until its end.

    Owns the descriptor and closes it. A line longer than one read is delivered in pieces.
    """

    def __init__(self, fd: int, on_line: Callable[[bytes], None]) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._on_line = on_line
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read)

    def close(self) -> None:
        """Reads what is still there, then closes; may be called twice."""
        for _ in range(MOST_LAST_READS):  # a child of the worker's could write on for ever
            if self._fd < 0 or not self._read():
                break
        self._end()

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= READ_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._on_line(line)
        return True

    def _end(self) -> None:
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        if self._rest:
            self._on_line(self._rest)
            self._rest = b""
