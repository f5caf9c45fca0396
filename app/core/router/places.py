"""What the scheduler knows of each model, and whom it would unload to make room. Pure.

Records are written by the scheduler alone.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from app.core.router.tickets import Ticket

RAM = "RAM"
USUAL_HOLD_S = 10.0


class Place(StrEnum):
    """Where a model is, as the scheduler knows it."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    UNLOADING = "unloading"


@dataclass(slots=True)
class ModelRecord:
    model_id: str
    place: Place = Place.UNLOADED
    slots: int = 1  # of the last load; one is assumed before the first
    kv_tokens: int = 0  # cells that all slots share; 0 where each has its own
    bytes_held: Mapping[str, int] = field(default_factory=dict)  # by device
    ready_s: float = 0.0
    used_s: float = 0.0
    waiting: list[Ticket] = field(default_factory=list)  # senior first
    held: dict[int, Ticket] = field(default_factory=dict)  # of this worker
    stale: dict[int, Ticket] = field(default_factory=dict)  # of a worker that has ended
    is_wanted: bool = False  # a load was asked for without a request
    lacking_bytes: int = 0  # what the last attempt to load lacked, and on which device
    lacking_device: str = RAM
    lacking_error: Exception | None = None
    has_reserved: bool = False  # room was made for it, and is nobody else's
    drains_for: str | None = None  # "" when it is to end for a reason of its own
    drain_reason: str = ""
    granted_at: dict[int, float] = field(default_factory=dict)
    hold_s: float = USUAL_HOLD_S  # how long a request holds a slot, smoothed once there is one
    is_measured: bool = False

    @property
    def is_needed(self) -> bool:
        return bool(self.waiting) or self.is_wanted

    @property
    def rank_s(self) -> float:
        return self.waiting[0].rank_s if self.waiting else math.inf


@dataclass(frozen=True, slots=True)
class ModelView:
    model_id: str
    place: Place
    slots: int
    in_flight: int
    queued: int


def is_moving(model: ModelRecord) -> bool:
    is_draining = model.place is Place.DRAINING and bool(model.drains_for)
    return is_draining or model.place in {Place.LOADING, Place.UNLOADING}


def bytes_on(model: ModelRecord, device: str) -> int:
    return model.bytes_held.get(device, 0)


def victims_for(
    models: Iterable[ModelRecord], device: str, lacking_bytes: int
) -> list[ModelRecord] | None:
    """Whom to unload, no more than it takes: the unwanted first, the idle first, then by LRU.

    None where all together do not free enough of the device.
    """
    chosen: list[ModelRecord] = []
    freed_bytes = 0
    for model in sorted(models, key=lambda m: (bool(m.waiting), bool(m.held), m.used_s)):
        if freed_bytes >= lacking_bytes:
            break
        chosen.append(model)
        freed_bytes += bytes_on(model, device)
    if freed_bytes < lacking_bytes:
        return None
    for model in sorted(chosen, key=lambda m: bytes_on(m, device)):
        if freed_bytes - bytes_on(model, device) >= lacking_bytes:
            chosen.remove(model)
            freed_bytes -= bytes_on(model, device)
    return chosen


def view_of(model: ModelRecord) -> ModelView:
    return ModelView(
        model.model_id,
        model.place,
        model.slots,
        len(model.held) + len(model.stale),
        len(model.waiting),
    )
