"""A core that only pretends: a loop on a thread, a handle, and commands that move the snapshot.

Used in-process by the widget tests, and by `stand_in_program.py` on a real X server.
"""

import asyncio
import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

from app.core.errors import CoolheadError, SettingsInvalid
from app.core.events import AppStateChanged, Event, EventBus
from app.core.handle import (
    ApplySettings,
    Command,
    Handle,
    Pause,
    Quit,
    Snapshot,
    Start,
    Stop,
    WorkerSnapshot,
)
from app.core.lifecycle import AppState, WorkerState
from app.core.settings import Settings

GIB = 1024**3
MIB = 1024**2

WORKER = WorkerSnapshot(
    "qwen2.5-7b",
    WorkerState.READY,
    pid=4242,
    engine="xllamacpp",
    context_tokens=8192,
    slots=2,
    in_flight=1,
    tokens_per_s=23.4,
    planned_bytes={"RAM": 6 * GIB},
    taken_bytes={"RAM": 5 * GIB + 700 * MIB},
    own_bytes=2 * GIB,
    cap_bytes=3 * GIB,
)


class StandInCore:
    """Commands change the snapshot as the real core would, at once and on the core loop."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.commands: list[Command] = []
        self.refusals: dict[type[Command], CoolheadError] = {}
        self.quit_takes_s = 0.0
        self.hangs_on_quit = False
        self._loop = asyncio.new_event_loop()
        self._events = EventBus()
        self.handle = Handle(self._loop, self._events, self._carry_out)
        self.handle.put(snapshot or Snapshot(ram_total_bytes=16 * GIB))
        self._thread = threading.Thread(target=self._run, name="core-loop")

    def start(self) -> "StandInCore":
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, **changes: Any) -> None:
        """Changes the snapshot on the core loop, and returns once it is there."""
        done = threading.Event()

        def change() -> None:
            old = self.handle.snapshot
            self.handle.put(dataclasses.replace(old, version=old.version + 1, **changes))
            done.set()

        self._loop.call_soon_threadsafe(change)
        assert done.wait(20)

    def publish(self, *happened: Event) -> None:
        for one in happened:
            self._loop.call_soon_threadsafe(self._events.publish, one)

    def received(self, kind: type[Command]) -> list[Any]:
        return [command for command in self.commands if isinstance(command, kind)]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    def _set(self, state: AppState, **changes: Any) -> None:
        old = self.handle.snapshot
        self.handle.put(dataclasses.replace(old, version=old.version + 1, state=state, **changes))
        self._events.publish(AppStateChanged(state, at=time.time()))

    async def _carry_out(self, command: Command) -> object:
        self.commands.append(command)
        if type(command) in self.refusals:
            raise self.refusals[type(command)]
        match command:
            case Start():
                self._set(AppState.READY, endpoint="http://127.0.0.1:8555/v1", reason="")
            case Stop():
                self._set(
                    AppState.STOPPED, endpoint="", is_paused=False, reason="asked by the user"
                )
            case Pause(is_paused=wanted):
                state = AppState.PAUSED if wanted else AppState.READY
                self._set(state, is_paused=wanted)
            case ApplySettings(changes=changes):
                self._apply(changes)
            case Quit():
                self._set(AppState.STOPPING)
                await asyncio.sleep(3600 if self.hangs_on_quit else self.quit_takes_s)
                self._set(AppState.STOPPED, endpoint="")
            case _:
                pass
        return None

    def _apply(self, changes: Mapping[str, object]) -> None:
        if changes.get("server.port") == 80:
            raise SettingsInvalid(
                "server.port cannot be 80: it takes a free port.", key="server.port"
            )
        old = self.handle.snapshot
        settings: Settings = old.settings.replace(changes)
        self._set(old.state, settings=settings)
