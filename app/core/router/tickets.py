"""A waiting request as the scheduler sees it, what it may be told, and when the door is closed. Pure.

Made by the dispatcher, kept by the scheduler, on the core loop.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from app.core.router.decision import Overload

# One step of priority is worth so many seconds of waiting: ageing and priority are one scale.
AGEING_S = 10.0
# Each doubling of a request above this size costs it one step, so that short ones pass long ones.
SMALL_TOKENS = 1024
MAX_SIZE_STEPS = 6
MAX_PRIORITY_STEPS = 10


class Ticket(msgspec.Struct, frozen=True):
    """One request that wants a slot.

    Attributes:
        ticket_id: unique for the life of the scheduler.
        priority: steps; higher is sooner, 0 is usual. Held to -10 to 10, as rules have it.
        size_tokens: estimate of prompt and answer together.
        enqueued_s: when it came, monotonic seconds.
        deadline_s: when waiting is over, monotonic seconds.
        overload: what happens with every slot taken; None for the user's setting.
        may_degrade: it has a fallback for a full house that has not been tried.
    """

    ticket_id: int
    model_id: str
    priority: int = 0
    size_tokens: int = 0
    enqueued_s: float = 0.0
    deadline_s: float = math.inf
    overload: Overload | None = None
    may_degrade: bool = False

    @property
    def rank_s(self) -> float:
        """The lower, the sooner.

        All tickets age alike, so the order of two never changes and none starves: whoever comes more
        than the whole span of priority and size (260 s) later stands behind.
        """
        steps = max(-MAX_PRIORITY_STEPS, min(MAX_PRIORITY_STEPS, self.priority))
        if self.size_tokens > SMALL_TOKENS:
            steps -= min(MAX_SIZE_STEPS, (self.size_tokens // SMALL_TOKENS).bit_length() - 1)
        return self.enqueued_s - AGEING_S * steps


class RefusalKind(StrEnum):
    """Why a ticket got no slot; names the fallback that applies."""

    OVERLOADED = "overloaded"
    CLOSED = "closed"
    WAITED_TOO_LONG = "waited_too_long"
    LOAD_FAILED = "load_failed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """`error` is what stopped the load, where a load was stopped."""

    kind: RefusalKind
    sentence: str
    retry_after_s: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Closing:
    """One model is closed, for the reason in `sentence`: none of its requests is taken or starts.

    Attributes:
        since_s: monotonic seconds.
        patience_s: how long waiting requests are kept from then on.
        until_s: when it opens by itself; endless where somebody opens it.
    """

    sentence: str
    retry_after_s: int
    since_s: float
    patience_s: float = math.inf
    until_s: float = math.inf

    def retry_s(self, now: float) -> int:
        """When to come back, in whole seconds from 1 to 60."""
        if math.isinf(self.until_s):
            return self.retry_after_s
        return max(1, min(60, math.ceil(self.until_s - now)))


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether requests are taken. Made by the gate.

    Attributes:
        takes_new: new requests may join the queue.
        grants: waiting requests get slots.
        loads: models may be loaded.
        empties_queue: waiting requests are refused as well.
        sentence: the reason, for the client.
        patience_s: how long waiting requests are kept while they get no slots.
        closed_models: models that are closed beside that.
    """

    takes_new: bool = True
    grants: bool = True
    loads: bool = True
    empties_queue: bool = False
    sentence: str = ""
    retry_after_s: int = 10
    patience_s: float = math.inf
    closed_models: Mapping[str, Closing] = field(default_factory=dict)


OPEN = Admission()
