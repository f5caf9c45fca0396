"""Runs the slow readings beside the watchdog: in a forked process on Linux, else in a thread.

Made once at the guard's start, before its first worker. A reader that dies or hangs costs its
readings, nothing else: the watchdog then goes without.
"""

import contextlib
import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

import msgspec

from app.guard.census import Census, Count
from app.guard.gpu_reader import NvmlGpus, read_fdinfo
from app.guard.reader import GpuReading, Pace, Read, SlowReading, Wish

PR_SET_PDEATHSIG = 1
_wishes = msgspec.json.Decoder(Wish)
_readings = msgspec.json.Decoder(SlowReading)


def make_read(count: Count, read_gpus: Callable[[tuple[int, ...]], tuple[GpuReading, ...]]) -> Read:
    """One function for a whole wish; what was not wished for keeps its last value."""
    census = Census(count)
    last = SlowReading()

    def read(wish: Wish) -> SlowReading:
        nonlocal last
        gpus = read_gpus(wish.pids) if wish.gpus else last.gpus
        program, grown = last.grown_program, last.grown_bytes
        if wish.programs:
            found = census.look(frozenset(wish.pids) | frozenset(wish.ours))
            program, grown = found.program, found.bytes
        last = SlowReading(time.monotonic(), gpus, program, grown)
        return last

    return read


def read_gpus_linux() -> Callable[[tuple[int, ...]], tuple[GpuReading, ...]]:
    """NVIDIA's library and the kernel's account together."""
    nvml = NvmlGpus()
    return lambda pids: nvml.read() + read_fdinfo(pids)


class ProcessReader:
    """`reader.SlowReader` in a forked process. Thread: the guard's only one."""

    def __init__(self, make: Callable[[], Read]) -> None:
        self._pace = Pace()
        self._latest = SlowReading()
        self._rest = b""
        wish_read, self._wish = os.pipe()
        self._answer, answer_write = os.pipe()
        guard_pid = os.getpid()
        self._ours = (guard_pid, os.getppid())
        self._pid = os.fork()
        if self._pid == 0:
            _serve(guard_pid, make, wish_read, answer_write)
        os.close(wish_read)
        os.close(answer_write)
        os.set_blocking(self._wish, False)
        os.set_blocking(self._answer, False)

    def want(self, at_s: float, pids: tuple[int, ...], *, on_gpu: bool, is_pressed: bool) -> None:
        wish = self._pace.due(at_s, pids, on_gpu=on_gpu, is_pressed=is_pressed)
        if wish is None or self._wish < 0:
            return
        full = replace(wish, ours=(*self._ours, self._pid))
        try:
            os.write(self._wish, msgspec.json.encode(full) + b"\n")
        except BlockingIOError:
            return
        except OSError:
            self._let_go()

    def latest(self) -> SlowReading:
        if self._answer < 0 or not self._pace.is_out:
            return self._latest
        try:
            piece = os.read(self._answer, 65536)
        except BlockingIOError:
            return self._latest
        if not piece:
            self._let_go()
            return self._latest
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if lines:
            self._pace.answered()
            with contextlib.suppress(msgspec.MsgspecError):
                self._latest = _readings.decode(lines[-1])
        return self._latest

    def _let_go(self) -> None:
        for fd in (self._wish, self._answer):
            if fd >= 0:
                os.close(fd)
        self._wish = self._answer = -1

    def close(self) -> None:
        self._let_go()
        with contextlib.suppress(OSError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.waitpid(self._pid, 0)


def _serve(guard_pid: int, make: Callable[[], Read], wish_read: int, answer_write: int) -> NoReturn:
    """The reader process: answers the last wish it finds, until the guard is gone."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != guard_pid:
            os._exit(0)
        os.closerange(3, min(wish_read, answer_write))
        os.nice(5)
        read = make()
        rest = b""
        while piece := os.read(wish_read, 65536):
            *lines, rest = (rest + piece).split(b"\n")
            if lines:
                answer = read(_wishes.decode(lines[-1]))
                os.write(answer_write, msgspec.json.encode(answer) + b"\n")
    except BaseException as error:  # noqa: BLE001 - the forked child must not live on as a guard
        with contextlib.suppress(OSError):
            os.write(2, f"reader: {error}\n".encode())
    os._exit(0)


class ThreadReader:
    """`reader.SlowReader` in a thread, for systems on which the guard does not fork.

    Thread: `want` and `latest` in the guard's main thread; the reading in its own.
    """

    def __init__(self, make: Callable[[], Read]) -> None:
        self._pace = Pace()
        self._make = make
        self._wish: Wish | None = None
        self._latest = SlowReading()
        self._is_closed = False
        self._bell = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="slow-reader", daemon=True)
        self._thread.start()

    def want(self, at_s: float, pids: tuple[int, ...], *, on_gpu: bool, is_pressed: bool) -> None:
        wish = self._pace.due(at_s, pids, on_gpu=on_gpu, is_pressed=is_pressed)
        if wish is None:
            return
        with self._bell:
            self._wish = replace(wish, ours=(os.getpid(), os.getppid()))
            self._bell.notify()

    def latest(self) -> SlowReading:
        return self._latest

    def _run(self) -> None:
        read = self._make()
        while True:
            with self._bell:
                self._bell.wait_for(lambda: self._is_closed or self._wish is not None)
                wish, self._wish = self._wish, None
            if self._is_closed or wish is None:
                return
            with contextlib.suppress(Exception):
                # A reading that fails is one that is missing; the next is tried all the same.
                self._latest = read(wish)
            self._pace.answered()

    def close(self) -> None:
        with self._bell:
            self._is_closed = True
            self._bell.notify()
        self._thread.join(2.0)
