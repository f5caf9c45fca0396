"""What the guard's loop asks of its end of the link, the same on every system. Pure shapes.

`link_posix` and `link_windows` offer it.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

LINK_READY = -1
"""What `wait` reports when a message, or the end, can be received."""


class LinkClosed(Exception):
    """The other side is gone."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One message and the descriptors that came with it; the receiver owns them."""

    data: bytes
    descriptors: tuple[int, ...] = ()


class GuardLink(Protocol):
    """Thread: the one that made it."""

    def send(self, data: bytes, descriptors: Sequence[int] = (), *, may_drop: bool = False) -> None:
        """Sends, or keeps for later while the other side does not read; never waits.

        Raises:
            LinkClosed: when the other side is gone.
        """
        ...

    def flush(self) -> None: ...

    def receive(self) -> list[Packet]:
        """Everything that has arrived; never waits.

        Raises:
            LinkClosed: when the other side is gone and all it sent was returned before.
        """
        ...

    def wait(self, timeout_s: float, handles: Sequence[int]) -> frozenset[int]:
        """Until a message (`LINK_READY`), one of the handles, or the time; returns what is ready."""
        ...

    def wait_handles(self, timeout_s: float, handles: Sequence[int]) -> None:
        """The same without messages, for when the link is closed."""
        ...

    def close(self) -> None: ...


def close_descriptors(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
