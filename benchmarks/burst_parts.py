"""The app's parts in one process, with a planner that says too little; for `burst.py --too-small`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.model_planner import ModelPlanner
from app.core.backends.planner import EngineUse, Live, Priced
from app.core.backends.supervisor import Supervisor
from app.core.event_log import EventLog, read_events
from app.core.events import EventBus
from app.core.handle import Command, Snapshot
from app.core.hardware.machine import Machine
from app.core.hardware.probe import probe_machine
from app.core.lifecycle import ExitCause
from app.core.models.library import ModelLibrary
from app.core.models.spec import ModelSpec
from app.core.paths import Paths
from app.core.router.endpoint import Endpoint
from app.core.router.ladder import Ladder
from app.core.router.router import Router
from app.core.settings import Settings
from app.guard.client import GuardClient


class LyingPlanner:
    """The real planner, but the first load is said to own only `share` of what it will."""

    def __init__(self, share: float) -> None:
        self._planner = ModelPlanner(probe_machine)
        self._share = share

    def machine(self) -> Machine:
        return self._planner.machine()

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        priced = self._planner.price(spec, settings, live, engine, steps)
        if steps:
            return priced
        said = dataclasses.replace(priced.plan, own_bytes=int(priced.plan.own_bytes * self._share))
        return dataclasses.replace(priced, plan=said)

    def record(
        self, spec: ModelSpec, priced: Priced, taken_bytes: Mapping[str, int], engine: EngineUse
    ) -> None:
        """Nothing is learnt from a lie."""


class Parts:
    """Supervisor, guard, endpoint and ladder, wired as in the app. Use as a context manager."""

    def __init__(self, home: Paths, settings: Settings, share: float) -> None:
        events = EventBus()
        self._home = home
        events.subscribe(EventLog(home.events_file))
        library = ModelLibrary(home)
        self.supervisor = Supervisor(
            guard=GuardClient,
            library=library,
            planner=LyingPlanner(share),
            backends=[LlamaCppBackend(lambda: settings, engines_folder=home.engines)],
            events=events,
            settings=lambda: settings,
        )
        self._endpoint = Endpoint(
            workers=self.supervisor,
            library=library,
            router=Router.default(),
            events=events,
            settings=lambda: settings,
            snapshot=Snapshot,
            execute=self._refuse,
            admin_token="not used",
        )
        self._ladder = Ladder(self.supervisor, self._endpoint, events)

    async def _refuse(self, command: Command) -> object:
        raise NotImplementedError(command)

    async def __aenter__(self) -> Self:
        await self.supervisor.start()
        await self._endpoint.open(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._endpoint.close(0.0)
        await self.supervisor.stop_all(ExitCause.STOPPED_BY_USER)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._endpoint.port}"

    def told(self) -> list[dict[str, Any]]:
        """What happened, as `coolhead events --json` shows it."""
        return read_events(self._home.events_file, 200)
