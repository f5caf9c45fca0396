"""Picks the files of this operating system and puts them together for the watchdog."""

import socket
import sys
from dataclasses import dataclass

from app.guard.child import Sampler, Spawner
from app.guard.link import GuardLink
from app.guard.options import GuardOptions
from app.guard.reader import SlowReader


@dataclass(frozen=True, slots=True)
class System:
    """What the watchdog stands on."""

    link: GuardLink
    spawner: Spawner
    sampler: Sampler
    reader: SlowReader


def open_system(fd: int, options: GuardOptions) -> System:
    """The parts for this system; `fd` is our end of the link, a descriptor or a handle."""
    if sys.platform == "win32":
        return _open_windows(fd, options)
    from app.guard.link_posix import PosixLink

    link = PosixLink(socket.socket(fileno=fd))
    return _open_macos(link, options) if sys.platform == "darwin" else _open_linux(link, options)


def _open_linux(link: GuardLink, options: GuardOptions) -> System:
    from app.guard.census import count_linux
    from app.guard.reader_process import ProcessReader, make_read, read_gpus_linux
    from app.guard.sampler_linux import LinuxSampler
    from app.guard.spawn_linux import LinuxSpawner

    # First of all, so that the spawner knows it for a child that is no worker.
    reader = ProcessReader(lambda: make_read(count_linux, read_gpus_linux()))
    return System(link, LinuxSpawner(options), LinuxSampler(), reader)


def _open_macos(link: GuardLink, options: GuardOptions) -> System:
    from app.guard.census import count_psutil
    from app.guard.reader_process import ThreadReader, make_read
    from app.guard.sampler_macos import MacosSampler
    from app.guard.spawn_macos import MacosSpawner

    # Metal's memory is in the footprint, so there is no GPU to read beside it.
    reader = ThreadReader(lambda: make_read(count_psutil, lambda _pids: ()))
    return System(link, MacosSpawner(options), MacosSampler(), reader)


def _open_windows(fd: int, options: GuardOptions) -> System:
    from app.guard.census import count_psutil
    from app.guard.gpu_windows import PdhGpus
    from app.guard.link_windows import WindowsLink
    from app.guard.reader_process import ThreadReader, make_read
    from app.guard.sampler_windows import WindowsSampler
    from app.guard.spawn_windows import WindowsSpawner

    reader = ThreadReader(lambda: make_read(count_psutil, PdhGpus().read))
    return System(WindowsLink(fd), WindowsSpawner(options), WindowsSampler(), reader)
