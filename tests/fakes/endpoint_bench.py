"""A whole endpoint on a free port: real server, real supervisor, fake guard, fake engine."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2

from app.core.backends.supervisor import Supervisor
from app.core.events import Event, EventBus
from app.core.handle import Command, Snapshot
from app.core.lifecycle import ExitCause
from app.core.models.spec import ModelSpec
from app.core.router.endpoint import Endpoint
from app.core.router.router import Router, compile_rules
from app.core.router.rules import RoutingRules
from app.core.settings import Settings
from tests.fakes.fake_backends import FakeBackend, FakeGuard, FakeLibrary, FakePlanner, until

TOKEN = "admin-token"
CHAT = "/v1/chat/completions"


class Library(FakeLibrary):
    def specs(self) -> tuple[ModelSpec, ...]:
        return tuple(self.find(name) for name in ("m", "n", "o"))


class EndpointBench:
    """Change `settings` or `backend.options` before the first request."""

    def __init__(self, rules: RoutingRules | None = None, log_folder: Path | None = None) -> None:
        self.events: list[Event] = []
        self.bus = EventBus()
        self.bus.subscribe(self.events.append)
        self.backend = FakeBackend({"token_s": "0.001"})
        self.planner = FakePlanner()
        self.settings = Settings().replace({"model.default": "m"})
        self.commands: list[Command] = []
        FakeGuard.made.clear()
        library = Library()
        self.supervisor = Supervisor(
            guard=FakeGuard,
            library=library,
            planner=self.planner,
            backends=[self.backend],
            events=self.bus,
            settings=lambda: self.settings,
        )
        self.router = Router(rules or RoutingRules())
        self.endpoint = Endpoint(
            workers=self.supervisor,
            library=library,
            router=self.router,
            events=self.bus,
            settings=lambda: self.settings,
            snapshot=Snapshot,
            execute=self._execute,
            admin_token=TOKEN,
            log_folder=log_folder,
        )
        self.client: httpx2.AsyncClient

    async def _execute(self, command: Command) -> object:
        self.commands.append(command)
        return None

    @property
    def guard(self) -> FakeGuard:
        return FakeGuard.made[-1]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.endpoint.port}"

    async def chat(self, text: str = "hello there", **more: Any) -> httpx2.Response:
        """One answer, not streamed unless asked for."""
        return await self.client.post(CHAT, json=body(text, **more))

    def use(self, rules: RoutingRules) -> None:
        """Puts rules into force as a reload does."""
        self.endpoint.use_routes(compile_rules(rules))

    async def load(self, model: str = "m") -> None:
        await self.endpoint.load(model)


def body(text: str = "hello there", **more: Any) -> dict[str, Any]:
    return {
        "model": "auto",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 5,
        **more,
    }


def texts(stream: str) -> list[str]:
    """The content of each chunk of a chat stream."""
    found = []
    for line in stream.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                content = choice.get("delta", {}).get("content")
                if content:
                    found.append(content)
    return found


def run(
    story: Callable[[EndpointBench], Awaitable[None]],
    rules: RoutingRules | None = None,
    log_folder: Path | None = None,
    settings: dict[str, object] | None = None,
    options: dict[str, str] | None = None,
) -> None:
    """Tells a story on a bench, and clears it away."""

    async def tell() -> None:
        bench = EndpointBench(rules, log_folder)
        bench.settings = bench.settings.replace(settings or {})
        bench.endpoint.settings_changed()
        bench.backend.options |= options or {}
        await bench.supervisor.start()
        await bench.endpoint.open(0)
        limits = httpx2.Limits(max_connections=200)
        async with httpx2.AsyncClient(base_url=bench.base, timeout=60, limits=limits) as client:
            bench.client = client
            try:
                await story(bench)
            finally:
                await bench.endpoint.close(0.0)
                await bench.supervisor.stop_all(ExitCause.APP_GONE)
        me = asyncio.current_task()
        await until(lambda: asyncio.all_tasks() <= {me}, "the end of every task")

    asyncio.run(tell())
