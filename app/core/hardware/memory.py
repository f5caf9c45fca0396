"""RAM, swap and processors as a system's own file reads them. Pure data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Memory:
    """Sizes in bytes; `available` is what can be had without swapping."""

    total_bytes: int
    available_bytes: int
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Cores:
    """Processors that this process may run on."""

    physical: int
    logical: int
