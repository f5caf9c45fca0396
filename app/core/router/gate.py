"""The door: closed while paused, stopping, under memory pressure, or cooling down. Pure.

It closes for all, or for one model. `Endpoint` turns it as the user, the guard and the supervisor say; the scheduler is told what it means
for waiting requests. It also remembers which requests cost a worker its life. Core loop only.
"""

import dataclasses
import hashlib
import math
from collections import OrderedDict

from app.core.lifecycle import PressureLevel
from app.core.router.tickets import OPEN, Admission, Closing

COOL_DOWN_S = 30.0
BLAMED_KEPT = 256
USER = "user"
"""Who pauses by hand; others pause for reasons of the desktop."""

PRESSURE_PATIENCE_S = 15.0
"""Waiting requests outlast a stop for memory and its cool-down, some 12 s together; not more."""
MODEL_RETRY_S = 5  # its worker ends, and the guard opens 3 s later
VAIN_LOAD_PAUSE_S = 60.0
"""A load that ended without one answer, for want of memory, is not tried again for this long."""

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
        self._closed: dict[str, Closing] = {}
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

    # One model, and not the others.

    def close_model(self, model_id: str, sentence: str, now: float, pause_s: float = 0.0) -> None:
        """Closes one model, for `pause_s` or, with 0, until `open_models`."""
        retry_s = min(60, math.ceil(pause_s)) if pause_s else MODEL_RETRY_S
        until_s = now + pause_s if pause_s else math.inf
        words = f"{model_id} takes no requests for now (503 service unavailable). {sentence}"
        self._closed[model_id] = Closing(words, retry_s, now, PRESSURE_PATIENCE_S, until_s)

    def open_models(self) -> None:
        """Opens what was closed without an end; a pause runs on."""
        self._closed = {
            name: closing for name, closing in self._closed.items() if closing.until_s < math.inf
        }

    def open_paused(self, model_id: str) -> None:
        """Ends a model's pause before its time: the user asks for it."""
        closing = self._closed.get(model_id)
        if closing is not None and closing.until_s < math.inf:
            del self._closed[model_id]

    def expire(self, now: float) -> bool:
        """Ends the pauses that are over; whether there were any."""
        over = [name for name, closing in self._closed.items() if closing.until_s <= now]
        for name in over:
            del self._closed[name]
        return bool(over)

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
    def pressure_sentence(self) -> str:
        """The guard's own words; empty while there is no pressure."""
        return self._pressure_sentence if self._pressure is not PressureLevel.NORMAL else ""

    @property
    def pressure(self) -> PressureLevel:
        return self._pressure

    def admission(self) -> Admission:
        """What the door's state means, strongest reason first.

        Pausing holds the queue where it is; memory pressure keeps requests from starting, and before
        long sends away who waits; stopping sends everyone away who is not being answered.
        """
        admission = self._admission()
        if self._closed:
            return dataclasses.replace(admission, closed_models=dict(self._closed))
        return admission

    def _admission(self) -> Admission:
        if self._is_stopping:
            sentence = "Coolhead is stopping (503 service unavailable)."
            return Admission(False, False, False, True, sentence, 10)
        if self._pressure is not PressureLevel.NORMAL:
            reason = self._pressure_sentence or "The machine is short of memory."
            sentence = f"No new requests are taken for now (503 service unavailable). {reason}"
            retry_s = _PRESSURE_RETRY_S[self._pressure]
            return Admission(False, False, False, False, sentence, retry_s, PRESSURE_PATIENCE_S)
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
