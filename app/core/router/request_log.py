"""One line for each request, without a word of its content: who, where to, how long, how much.

Written by a thread of its own, so that no request waits for a disk. Rotated daily and by size; seven
files are kept, so that all together stay below 7 x 8 MiB. Lines come from the core loop.
"""

import asyncio
import contextlib
import queue
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import msgspec

NAME = "requests.jsonl"
FILE_BYTES = 8 * 1024 * 1024
FILES_KEPT = 7
# A disk that hangs costs log lines, never memory.
LINES_WAITING = 4096
BUNCHES_WAITING = 16
BUNCH_S = 0.5


class RequestLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is written. Times in milliseconds, sizes in bytes and tokens."""

    at: datetime
    path: str
    status: int
    rule: str = ""
    target: str = ""
    model: str = ""
    stream: bool = False
    queued_ms: float = 0.0
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    request_bytes: int = 0
    answer_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    outcome: str = "ok"
    fallbacks: tuple[str, ...] = ()
    cached: bool = False


class RequestLog:
    """Thread: `write` on the core loop; the file belongs to the thread `request-log`.

    Lines are handed over in bunches: waking the thread for each one cost the loop 90 microseconds.
    """

    def __init__(
        self, folder: Path | None, file_bytes: int = FILE_BYTES, files_kept: int = FILES_KEPT
    ) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._files_kept = files_kept
        self._lines: list[RequestLine] = []
        self._bunches: queue.SimpleQueue[list[RequestLine] | None] = queue.SimpleQueue()
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def open(self) -> None:
        if self._folder is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="request-log", daemon=True)
            self._thread.start()

    def write(self, line: RequestLine) -> None:
        """Takes a line and returns at once; while too many wait for the disk, lines are lost."""
        if self._thread is None:
            return
        if len(self._lines) >= LINES_WAITING or self._bunches.qsize() > BUNCHES_WAITING:
            self.dropped += 1
            return
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(BUNCH_S, self._hand_over)

    def _hand_over(self) -> None:
        self._timer = None
        lines, self._lines = self._lines, []
        self._bunches.put(lines)

    def close(self, timeout_s: float = 2.0) -> None:
        """Writes what is waiting and ends the thread; blocking, on the core loop's thread or after it."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._hand_over()
        self._bunches.put(None)
        thread.join(timeout_s)

    def _run(self) -> None:
        assert self._folder is not None
        encoder = msgspec.json.Encoder()
        path = self._folder / NAME
        out: IO[bytes] | None = None
        try:
            while (lines := self._bunches.get()) is not None:
                left_bytes = 0
                for line in lines:
                    try:
                        if out is None or left_bytes <= 0:
                            out = self._rotated(path, out)
                            left_bytes = self._file_bytes - out.tell()
                        left_bytes -= out.write(encoder.encode(line) + b"\n")
                    except OSError:
                        self.dropped += 1  # the log is no reason to stop serving
                if out is not None:
                    with contextlib.suppress(OSError):
                        out.flush()
        finally:
            if out is not None:
                with contextlib.suppress(OSError):
                    out.close()

    def _rotated(self, path: Path, out: IO[bytes] | None) -> IO[bytes]:
        """The file to write to; the old one is moved away when it is full or of another day."""
        if out is None:
            out = path.open("ab")
        size_bytes = out.tell()
        today = datetime.now(UTC).date()
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC).date() if size_bytes else today
        if size_bytes < self._file_bytes and written == today:
            return out
        out.close()
        for number in range(self._files_kept - 1, 0, -1):
            source = path if number == 1 else path.with_name(f"{NAME}.{number - 1}")
            if source.exists():
                source.replace(path.with_name(f"{NAME}.{number}"))
        return path.open("ab")
