"""Pauses for battery and full-screen programs: beside the user's own, and never in their way."""

import asyncio
import contextlib
import threading
import time

import pytest

from app.core.events import Event, EventBus, Notice
from app.core.hardware.full_screen import FullScreen
from app.core.hardware.power import Power
from app.core.router import desktop_pause
from app.core.router.desktop_pause import DesktopPause
from app.core.router.gate import Gate
from app.core.settings import Settings

BOTH = {"desktop.pause_on_battery": True, "desktop.pause_on_full_screen": True}


class Desk:
    """A machine whose plug and screen the test holds, with a real gate."""

    def __init__(self, **changes: object) -> None:
        self.settings = Settings().replace(changes or BOTH)
        self.power = Power(False)
        self.screen = FullScreen(False)
        self.looks = 0
        self.threads: set[int] = set()
        self.notices: list[Notice] = []
        self.gate = Gate()
        events = EventBus()
        events.subscribe(self._hear)
        self.pause = DesktopPause(
            lambda: self.settings, self.gate.pause, events, self._power, lambda: self.screen
        )

    def _power(self) -> Power:
        self.looks += 1
        self.threads.add(threading.get_ident())
        return self.power

    def _hear(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.notices.append(event)


def test_desktop_pause_on_battery_pauses_says_why_and_goes_on() -> None:
    async def run() -> None:
        desk = Desk()
        await desk.pause.look()
        assert not desk.gate.is_paused
        desk.power = Power(True)
        await desk.pause.look()
        await desk.pause.look()
        assert "battery" in desk.gate.admission().sentence
        assert len(desk.notices) == 1
        assert "plugged in" in desk.notices[0].text
        desk.power = Power(False)
        await desk.pause.look()
        assert not desk.gate.is_paused
        assert threading.get_ident() not in desk.threads

    asyncio.run(run())


def test_desktop_pause_and_the_users_own_hold_independently() -> None:
    async def run() -> None:
        desk = Desk()
        desk.gate.pause(True)
        desk.power, desk.screen = Power(True), FullScreen(True)
        await desk.pause.look()
        desk.power = Power(False)
        await desk.pause.look()
        assert "full-screen" in desk.gate.pause_sentence
        desk.screen = FullScreen(False)
        await desk.pause.look()
        assert desk.gate.is_paused
        assert desk.gate.pause_sentence == ""

    asyncio.run(run())


def test_desktop_pause_waived_by_the_user_stays_off_until_the_reason_has_ended() -> None:
    async def run() -> None:
        desk = Desk()
        desk.power = Power(True)
        await desk.pause.look()
        desk.pause.waive()
        await desk.pause.look()
        assert not desk.gate.is_paused
        desk.power = Power(False)
        await desk.pause.look()
        desk.power = Power(True)
        await desk.pause.look()
        assert desk.gate.is_paused

    asyncio.run(run())


def test_desktop_pause_switched_off_lifts_it_and_looks_no_more() -> None:
    async def run() -> None:
        desk = Desk()
        desk.power = Power(True)
        await desk.pause.look()
        desk.settings = Settings()
        await desk.pause.look()
        assert not desk.gate.is_paused
        looks = desk.looks
        await desk.pause.look()
        assert desk.looks == looks

    asyncio.run(run())


def test_desktop_pause_tells_what_cannot_be_told() -> None:
    async def run() -> None:
        desk = Desk(**{"desktop.pause_on_full_screen": True})
        desk.screen = FullScreen(False, "not available on Wayland.")
        await desk.pause.look()
        assert desk.pause.problems == ("not available on Wayland.",)
        assert desk.looks == 0
        desk.settings = Settings()
        await desk.pause.look()
        assert not desk.pause.problems

    asyncio.run(run())


def test_desktop_pause_runs_by_itself_and_at_once_after_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(desktop_pause, "POLL_S", 0.01)

    async def run() -> None:
        desk = Desk(**{"desktop.pause_on_battery": False})
        task = asyncio.create_task(desk.pause.run())
        await asyncio.sleep(0.05)
        assert desk.looks == 0
        desk.settings = Settings().replace(BOTH)
        desk.power = Power(True)
        desk.pause.settings_changed()
        deadline = time.monotonic() + 20
        while not (desk.gate.is_paused and desk.looks > 2):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
