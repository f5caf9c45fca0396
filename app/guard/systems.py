"""Picks the files of this operating system and puts them together for the watchdog."""

import socket
import sys
from dataclasses import dataclass

from app.guard.child import Sampler, Spawner
from app.guard.link import GuardLink
from app.guard.options import GuardOptions
from app.guard.reader import NO_READER, SlowReader


@dataclass(frozen=True, slots=True)
class System:
    """What the watchdog stands on."""

    link: GuardLink
    spawner: Spawner
    sampler: Sampler
    reader: SlowReader


def open_system(fd: int, options: GuardOptions) -> System:
    """The parts for this system; `fd` is our end of the link, a descriptor or a handle."""
    from app.guard.link_posix import PosixLink
    from app.guard.sampler_linux import LinuxSampler
    from app.guard.spawn_linux import LinuxSpawner

    return System(
        PosixLink(socket.socket(fileno=fd)), LinuxSpawner(options), LinuxSampler(), NO_READER
    )


def is_frozen() -> bool:
    """Whether this is a build without a Python interpreter of its own."""
    return bool(getattr(sys, "frozen", False))
