"""Takes memory in a chosen way at a chosen rate, for tests of the guard; never more than it is told.

    hog.py [--kind anon|shared|file|both] [--mib N] [--rate MIB_PER_S] [--hold S] [--then exit|crash|...]

Prints "ready" once it runs and "full" once it holds all of it. Runs without our package.
"""

import argparse
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path

STEP = 1024 * 1024
MIB = 1024 * 1024


class Progress:
    """Says in a small shared file how far we are: bytes touched, own memory before, cap crossed at."""

    def __init__(self, path: str, cap: int) -> None:
        self._view = None
        self._cap = cap
        if not path:
            return
        with Path(path).open("r+b") as file:
            self._view = mmap.mmap(file.fileno(), 24)
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                self._before = int(line.split()[1]) * 1024
        self._crossed = 0

    def note(self, done: int) -> None:
        if self._view is None:
            return
        if self._cap and not self._crossed and done + self._before >= self._cap:
            self._crossed = time.monotonic_ns()
        self._view[:] = struct.pack("<QQQ", done, self._before, self._crossed)


def take(kind: str, mib: int, rate: float, path: str, progress: Progress) -> mmap.mmap:
    """Touches `mib` in small steps, no faster than `rate` MiB/s (0: as fast as it goes)."""
    want = mib * MIB
    if kind == "file":
        fd = os.open(path, os.O_RDONLY)
        return mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
    flags = mmap.MAP_SHARED if kind == "shared" else mmap.MAP_PRIVATE
    memory = mmap.mmap(-1, want, flags | mmap.MAP_ANONYMOUS)
    if kind == "huge":
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = b"x" * STEP
    start = time.monotonic()
    done = 0
    while done < want:
        size = min(STEP, want - done)
        memory[done : done + size] = block[:size]
        done += size
        progress.note(done)
        if rate:
            ahead = done / (rate * MIB) - (time.monotonic() - start)
            if ahead > 0:
                time.sleep(ahead)
    return memory


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="anon")
    parser.add_argument("--mib", type=int, default=0)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("--hold", type=float, default=20)
    parser.add_argument("--then", default="exit")
    parser.add_argument("--code", type=int, default=0)
    parser.add_argument("--wait-for-line", action="store_true")
    parser.add_argument("--file", default="")
    parser.add_argument("--progress", default="", help="a file of 24 bytes")
    parser.add_argument("--cap", type=int, default=0, help="bytes, for the moment it is crossed")
    parser.add_argument("--fork", action="store_true", help="hold it in a child of our own")
    arguments = parser.parse_args()
    progress = Progress(arguments.progress, arguments.cap)
    print("ready", flush=True)
    if arguments.wait_for_line:
        sys.stdin.readline()
    if arguments.fork and os.fork() != 0:
        time.sleep(arguments.hold)
        os._exit(0)
    try:
        memory = take(arguments.kind, arguments.mib, arguments.rate, arguments.file, progress)
    except (MemoryError, OSError) as error:
        print(f"refused: {error}", flush=True)
        os._exit(12)
    if arguments.kind == "file":
        end = time.monotonic() + arguments.hold
        total = 0
        print("full", flush=True)
        while time.monotonic() < end:
            for at in range(0, len(memory), 4096):
                total += memory[at]
        os._exit(0)
    print("full", flush=True)
    if arguments.then == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if arguments.then == "exit":
        time.sleep(arguments.hold)
    os._exit(arguments.code)


if __name__ == "__main__":
    main()
