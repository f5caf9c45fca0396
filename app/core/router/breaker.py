"""When a target that fails is left alone, and when it is tried again. Pure.

Asked by `pools.py` and `dispatcher.py` on the core loop, with the time.
"""

from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """Times in seconds.

    Attributes:
        failures: so many in a row open it.
        first_pause_s: how long it stays open the first time; doubled at each failed probe.
        longest_pause_s: the end of the doubling.
    """

    failures: int = 3
    first_pause_s: float = 2.0
    longest_pause_s: float = 60.0


class Breaker:
    """Closed, it lets all pass; open, none; after its pause, one probe that decides.

    Thread: core loop only.
    """

    def __init__(self, policy: BreakerPolicy | None = None) -> None:
        self._policy = policy or BreakerPolicy()
        self._failures = 0
        self._pause_s = self._policy.first_pause_s
        self._open_until_s = 0.0
        self._is_open = False
        self._is_probing = False

    def state(self, now: float) -> BreakerState:
        if not self._is_open:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now >= self._open_until_s else BreakerState.OPEN

    def can_pass(self, now: float) -> bool:
        """Whether a request may be sent now; asks only, see `passes`."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (
            state is BreakerState.HALF_OPEN and not self._is_probing
        )

    def passes(self, now: float) -> None:
        """A request is sent; in half-open it is the one probe until it succeeds, fails or is dropped."""
        self._is_probing = self.state(now) is BreakerState.HALF_OPEN

    def succeeded(self) -> None:
        self._failures = 0
        self._pause_s = self._policy.first_pause_s
        self._is_open = False
        self._is_probing = False

    def failed(self, now: float) -> None:
        """A request failed for the target's sake."""
        self._failures += 1
        was_probe = self._is_open and now >= self._open_until_s
        if was_probe:
            self._pause_s = min(self._pause_s * 2, self._policy.longest_pause_s)
        if was_probe or (not self._is_open and self._failures >= self._policy.failures):
            self._is_open = True
            self._open_until_s = now + self._pause_s
        self._is_probing = False

    def dropped(self) -> None:
        """A request ended without telling anything about the target (its client left)."""
        self._is_probing = False

    def opens_in_s(self, now: float) -> float:
        """How long until a request may pass again; 0 when it may."""
        return max(0.0, self._open_until_s - now) if self._is_open else 0.0
