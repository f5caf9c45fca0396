"""The door: closed while paused, stopping, under memory pressure, or cooling down. Pure.

`Endpoint` turns it as the user, the guard and the supervisor say; the scheduler is told what it means
for waiting requests. It also remembers which requests cost a worker its life. Core loop only.
"""

import hashlib
from collections import OrderedDict

from app.core.lifecycle import PressureLevel
from app.core.router.tickets import OPEN, Admission

COOL_DOWN_S = 30.0
BLAMED_KEPT = 256
USER = "user"
"""Who pauses by hand; others pause for reasons of the desktop."""

_PRESSURE_RETRY_S = {
    PressureLevel.ELEVATED: 10,
    PressureLevel.CRITICAL: 20,
    PressureLevel.KILL: 30,
    PressureLevel.COOL_DOWN: 30,
}


class Gate:
    """Several reasons may hold the door at once; the strongest speaks. Thread: core loop only."""

    def __init__(self) -> None:
        self._pauses: dict[str, str] = {}
        self._is_stopping = False
        self._pressure = PressureLevel.NORMAL
        self._pressure_sentence = ""
        self._blamed: OrderedDict[bytes, tuple[float, str]] = OrderedDict()

    def pause(self, is_paused: bool, sentence: str = "", by: str = USER) -> None:
        """Several may pause it at once, each for itself; the user's words go first."""
        self._pauses.pop(by, None)
        if is_paused:
            self._pauses[by] = sentence or "Coolhead is paused (503 service unavailable)."

    def stop(self, is_stopping: bool) -> None:
        self._is_stopping = is_stopping

    def press(self, level: PressureLevel, sentence: str = "") -> None:
        """The guard's level and its words with the numbers."""
        self._pressure = level
        self._pressure_sentence = sentence

    @property
    def is_paused(self) -> bool:
        return bool(self._pauses)

    @property
    def pause_sentence(self) -> str:
        """Why it is paused by others than the user; empty while it is not."""
        return next((words for by, words in self._pauses.items() if by != USER), "")

    @property
    def is_shut(self) -> bool:
        """Whether it is closed for requests to other machines, too."""
        return bool(self._pauses) or self._is_stopping

    @property
    def pressure(self) -> PressureLevel:
        return self._pressure

    def admission(self) -> Admission:
        """What the door's state means, strongest reason first.

        Pausing holds the queue where it is; memory pressure keeps requests from starting; stopping
        sends everyone away who is not being answered.
        """
        if self._is_stopping:
            sentence = "Coolhead is stopping (503 service unavailable)."
            return Admission(False, False, False, True, sentence, 10)
        if self._pressure is not PressureLevel.NORMAL:
            reason = self._pressure_sentence or "The machine is short of memory."
            sentence = f"No new requests are taken for now (503 service unavailable). {reason}"
            retry_s = _PRESSURE_RETRY_S[self._pressure]
            return Admission(False, False, False, False, sentence, retry_s)
        if self._pauses:
            sentence = self._pauses.get(USER) or self.pause_sentence
            return Admission(False, True, True, False, sentence, 30)
        return OPEN

    # Requests whose worker was stopped for memory: agents retry, and would do it again.

    def blame(self, fingerprint: bytes, sentence: str, now: float) -> None:
        """The worker of this request was stopped for memory just now."""
        self._blamed[fingerprint] = (now + COOL_DOWN_S, sentence)
        self._blamed.move_to_end(fingerprint)
        while len(self._blamed) > BLAMED_KEPT:
            self._blamed.popitem(last=False)

    @property
    def blames(self) -> bool:
        """Whether any request is blamed; spares the rest the digest of their bodies."""
        return bool(self._blamed)

    def blamed(self, fingerprint: bytes, now: float) -> tuple[float, str] | None:
        """Seconds left of its cool-down and the reason; None for an innocent request."""
        if not self._blamed:
            return None
        found = self._blamed.get(fingerprint)
        if found is None:
            return None
        until_s, sentence = found
        if now >= until_s:
            del self._blamed[fingerprint]
            return None
        return until_s - now, sentence


def fingerprint(path: str, body: bytes) -> bytes:
    """What makes two requests the same one, without keeping a word of them."""
    digest = hashlib.blake2b(path.encode(), digest_size=16)
    digest.update(b"\0")
    digest.update(body)
    return digest.digest()
