"""Pauses new requests on battery and while a full-screen program runs, where the user wants that.

Looks every few seconds, off the core loop, and only while one of the two settings is on. Its pauses
stand beside the user's own: neither lifts the other. When the user resumes by hand, what holds at
that moment is waived until it has ended. Made by the composition. Core loop only.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.core.events import EventBus, Notice
from app.core.hardware.full_screen import FullScreen, read_full_screen
from app.core.hardware.power import Power, read_power
from app.core.settings import Settings

_log = logging.getLogger(__name__)

POLL_S = 4.0

BATTERY = "battery"
FULL_SCREEN = "full_screen"
SENTENCES = {
    BATTERY: "Coolhead is paused while the machine runs on battery (503 service unavailable).",
    FULL_SCREEN: "Coolhead is paused while a full-screen program runs (503 service unavailable).",
}
WAY_OUT = {
    BATTERY: "It goes on when the machine is plugged in; Resume lifts it until then, and the setting "
    "is on the Desktop page.",
    FULL_SCREEN: "It goes on when the program leaves the screen; Resume lifts it until then, and the "
    "setting is on the Desktop page.",
}

PauseFor = Callable[[bool, str, str], None]
"""Whether, the words for clients, and who pauses: `Endpoint.pause`."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What was seen: which reasons hold, and what could not be told."""

    holding: frozenset[str]
    problems: tuple[str, ...]


class DesktopPause:
    """Thread: core loop only; the readings run in an executor.

    Args:
        settings: the current settings.
        pause: holds and lifts a pause.
        power: another reading than the real one, for tests; so is `full_screen`.
    """

    def __init__(
        self,
        settings: Callable[[], Settings],
        pause: PauseFor,
        events: EventBus,
        power: Callable[[], Power] = read_power,
        full_screen: Callable[[], FullScreen] = read_full_screen,
    ) -> None:
        self._settings = settings
        self._pause = pause
        self._events = events
        self._power = power
        self._full_screen = full_screen
        self._paused: set[str] = set()
        self._waived: set[str] = set()
        self._wake = asyncio.Event()
        self.problems: tuple[str, ...] = ()

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            self._wake.clear()
            await self.look()
            is_wanted = any(self._wanted().values())
            try:
                async with asyncio.timeout(POLL_S if is_wanted else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def settings_changed(self) -> None:
        """Looks again at once."""
        self._wake.set()

    def waive(self) -> None:
        """The user has resumed by hand: what holds now pauses nothing until it has ended."""
        for reason in tuple(self._paused):
            self._waived.add(reason)
            self._lift(reason)

    async def look(self) -> None:
        """One look and what follows from it."""
        wanted = self._wanted()
        seen = await asyncio.to_thread(self._see, wanted) if any(wanted.values()) else _NOTHING
        if seen.problems != self.problems:
            for problem in seen.problems:
                _log.warning("%s", problem)
        self.problems = seen.problems
        # The settings may have changed while it looked.
        holding = {reason for reason in seen.holding if self._wanted()[reason]}
        self._waived &= holding
        for reason in sorted(self._paused - holding):
            self._lift(reason)
        for reason in sorted(holding - self._paused - self._waived):
            self._hold(reason)

    def _wanted(self) -> dict[str, bool]:
        desktop = self._settings().desktop
        return {BATTERY: desktop.pause_on_battery, FULL_SCREEN: desktop.pause_on_full_screen}

    def _see(self, wanted: dict[str, bool]) -> _Look:
        holding, problems = set(), []
        if wanted[BATTERY]:
            power = self._power()
            problems.append(power.problem)
            if power.is_on_battery:
                holding.add(BATTERY)
        if wanted[FULL_SCREEN]:
            screen = self._full_screen()
            problems.append(screen.problem)
            if screen.is_full_screen:
                holding.add(FULL_SCREEN)
        return _Look(frozenset(holding), tuple(filter(None, problems)))

    def _hold(self, reason: str) -> None:
        self._paused.add(reason)
        sentence = SENTENCES[reason]
        _log.info("%s", sentence)
        self._pause(True, sentence, reason)
        text = f"{sentence} {WAY_OUT[reason]}"
        self._events.publish(
            Notice(f"pause:{reason}", "New requests are paused", text, at=time.time())
        )

    def _lift(self, reason: str) -> None:
        self._paused.discard(reason)
        _log.info("no pause any more: %s", reason)
        self._pause(False, "", reason)


_NOTHING = _Look(frozenset(), ())
