"""The endpoint as one object: server, router, dispatcher, admission and admin, wired.

Built by `composition`, opened and closed by the user's Start and Stop. What the guard and the user say
about taking requests comes in here. Core loop only.
"""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from app.core.errors import AdmissionClosed
from app.core.events import EventBus, RoutesReloaded
from app.core.handle import Snapshot
from app.core.lifecycle import PressureLevel
from app.core.router.access import AccessRules
from app.core.router.admin import ADMIN, Admin, Execute
from app.core.router.admissions import Admissions, Workers
from app.core.router.dispatcher import SERVED, Dispatcher
from app.core.router.gate import USER, Gate
from app.core.router.http import HttpServer
from app.core.router.http_types import Exchange, HttpLimits
from app.core.router.local import LocalDelivery
from app.core.router.metrics import Metrics
from app.core.router.names import Library, Names, canonical
from app.core.router.ollama_face import OllamaFace
from app.core.router.pages import Pages
from app.core.router.remote import RemoteDelivery
from app.core.router.request_log import RequestLog
from app.core.router.response_cache import ResponseCache
from app.core.router.router import CompiledRules, Router
from app.core.router.scheduler import ModelView, Policy
from app.core.router.targets import Targets
from app.core.settings import Settings

TICK_S = 1.0
SENT_AWAY_RETRY_S = 20
KILL_TOLD_S = 1.0  # for the errors of what is broken off to reach their clients


class Endpoint:
    """Thread: core loop only. Made on the loop; nothing listens until `open`.

    Args:
        workers: the supervisor.
        library: the installed models.
        router: with its rules; its `rules` name the remotes.
        settings: the current settings.
        snapshot: the newest snapshot, for status and metrics.
        execute: the core's executor of commands, for the admin part.
        admin_token: asked for below `/admin/`.
        log_folder: for the request log; None for none.
        pinned: models that are never unloaded to make room.
    """

    def __init__(
        self,
        *,
        workers: Workers,
        library: Library,
        router: Router,
        events: EventBus,
        settings: Callable[[], Settings],
        snapshot: Callable[[], Snapshot],
        execute: Execute,
        admin_token: str,
        log_folder: Path | None = None,
        pinned: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._settings = settings
        self._events = events
        self._router = router
        self._admin_token = admin_token
        self._pinned = pinned
        self._gate = Gate()
        self._admissions = Admissions(workers, self._gate, self._policy())
        self._names = names = Names(
            library,
            lambda: self._settings().model.default,
            self._admissions.is_ready,
        )
        self._metrics = Metrics(self._admissions.views, snapshot)
        self._remotes = RemoteDelivery(Targets())
        self._log = RequestLog(log_folder)
        self._cache = ResponseCache()
        self._dispatcher = Dispatcher(
            router=lambda: self._router,
            settings=settings,
            gate=self._gate,
            names=names,
            local=LocalDelivery(self._admissions, workers, self._gate),
            remotes=self._remotes,
            cache=self._cache,
            metrics=self._metrics,
            log=self._log,
        )
        self._pages = Pages(names, workers, self._gate, self._metrics)
        self._ollama = OllamaFace(names, workers)
        self._admin = Admin(execute, snapshot, events)
        self._server = HttpServer(self._handle, self._http_limits(), self._access())
        self._ticker: asyncio.Task[None] | None = None
        self._host = ""
        self._unsubscribe: Callable[[], None] | None = None

    # Life.

    async def open(self, port: int | None = None) -> None:
        """Opens the port; `port` overrides the setting.

        Raises:
            EndpointError: not a loopback address, or the port is taken.
        """
        server = self._settings().server
        await self._server.start(server.listen, server.port if port is None else port)
        self._host = server.listen  # a later change of the setting waits for the next opening
        self._gate.stop(False)
        self._remotes.use(self._router.rules)
        self._log.open()
        self._unsubscribe = self._events.subscribe(self._admissions.on_event)
        self._admissions.gate_changed()
        self._ticker = asyncio.get_running_loop().create_task(self._tick(), name="scheduler tick")

    async def close(self, drain_s: float) -> None:
        """Takes nothing new, lets what is being answered end for `drain_s`, and closes the port."""
        if self._ticker is None:
            return
        self._gate.stop(True)
        self._admissions.gate_changed()
        self._admin.close()
        loop = asyncio.get_running_loop()
        error = AdmissionClosed("Coolhead is stopping.", retry_after_s=10)
        timer = loop.call_later(drain_s, self._dispatcher.kill_all, error)
        try:
            await self._server.stop(drain_s + KILL_TOLD_S)
        finally:
            timer.cancel()
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker
            self._ticker = None
            await self._admissions.close()
            await self._remotes.close()
            if self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None
            self._log.close()

    # What the user and the guard say.

    def pause(self, is_paused: bool, sentence: str = "", by: str = USER) -> None:
        """Keeps the port, answers new requests with 503; what waits already is still answered."""
        self._gate.pause(is_paused, sentence, by)
        self._admissions.gate_changed()

    def press(self, level: PressureLevel, sentence: str = "") -> None:
        """The guard's pressure level: above normal nothing new starts."""
        self._gate.press(level, sentence)
        self._admissions.gate_changed()

    def close_model(self, model_id: str, sentence: str) -> None:
        """Closes one model; its worker ends once it has answered, for a fresh one to take its place."""
        self._gate.close_model(model_id, sentence, time.monotonic())
        self._admissions.gate_changed()
        self._admissions.drain(model_id, sentence)

    def open_models(self) -> None:
        """Opens what `close_model` closed."""
        self._gate.open_models()
        self._admissions.gate_changed()

    def loaded_in_vain(self, model_id: str, sentence: str) -> None:
        """Memory ends the model's worker: if it answered nothing, it is not loaded again at once."""
        self._admissions.loaded_in_vain(model_id, sentence)

    def send_away(self, model_id: str, sentence: str) -> bool:
        """Refuses those who wait for the model, and ends a load for them; whether there were any."""
        told = f"No new requests are taken for now (503 service unavailable). {sentence}"
        return self._admissions.send_away(model_id, told, SENT_AWAY_RETRY_S)

    def kill_newest(self, model_id: str, sentence: str) -> bool:
        """Breaks off the model's newest answer, for the guard; whether there was one."""
        error = AdmissionClosed(
            f"The answer was broken off (503 service unavailable). {sentence}", retry_after_s=20
        )
        return self._dispatcher.kill_newest(model_id, error)

    async def load(self, model_id: str) -> None:
        """Loads a model, making room for it if need be. Raises: CoolheadError."""
        await self._admissions.load(await self._names.resolve(model_id))

    def unload(self, model_id: str) -> None:
        """Unloads a model once its requests are answered."""
        self._admissions.drain(canonical(model_id))

    async def reload_routes(self) -> int:
        """Reads the rules again and puts them into force; how many there are.

        Raises:
            RoutesInvalid: the rules in force stay.
        """
        self.use_routes(await asyncio.to_thread(self._router.read_again))
        count = len(self._router.rules.rules)
        models = [spec.model_id for spec in await self._names.specs()]
        doubts = await asyncio.to_thread(self._router.lint, models, [self.port])
        told = tuple(str(problem) for problem in doubts)
        self._events.publish(RoutesReloaded(count, told, at=time.time()))
        return count

    def use_routes(self, compiled: CompiledRules) -> None:
        """Puts rules into force; requests on their way keep the ones they were decided by."""
        self._router.replace(compiled)
        self._cache.clear()
        if self.is_open:
            self._remotes.use(compiled.rules)

    def settings_changed(self) -> None:
        """Puts what needs no restart into force."""
        self._server.limits = self._http_limits()
        self._server.set_access(self._access())
        self._admissions.set_policy(self._policy())

    # What is so.

    @property
    def is_open(self) -> bool:
        return self._ticker is not None

    @property
    def is_paused(self) -> bool:
        return self._gate.is_paused

    @property
    def pause_sentence(self) -> str:
        """Why it is paused by others than the user; empty while it is not."""
        return self._gate.pause_sentence

    @property
    def port(self) -> int:
        """0 while closed."""
        return self._server.port

    @property
    def url(self) -> str:
        """What OpenAI clients take as base URL; empty while closed."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}/v1" if self.port else ""

    @property
    def in_flight(self) -> int:
        """Requests that hold a slot of a local model."""
        return self._admissions.in_flight

    @property
    def queued(self) -> int:
        return self._admissions.queued

    @property
    def running(self) -> int:
        """Requests on their way: waiting, answered here or by a remote."""
        return self._dispatcher.running

    def model(self, model_id: str) -> ModelView:
        """Slots, requests in flight and waiting of one model."""
        return self._admissions.view(model_id)

    def speeds(self) -> Mapping[str, float]:
        """Tokens per second now, by model, over all answers that stream."""
        return self._dispatcher.speeds()

    # The rest is its own business.

    async def _handle(self, exchange: Exchange) -> None:
        if exchange.request.path in SERVED:
            await self._dispatcher.handle(exchange)
        elif exchange.request.path.startswith(ADMIN):
            await self._admin.handle(exchange)
        elif not await self._pages.handle(exchange) and not await self._ollama.handle(exchange):
            await self._dispatcher.handle(exchange)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._admissions.tick()

    def _policy(self) -> Policy:
        settings = self._settings()
        return Policy(
            settings.queue.max_queue_size,
            settings.queue.overload,
            settings.model.idle_timeout_s,
            pinned=self._pinned(),
        )

    def _http_limits(self) -> HttpLimits:
        server = self._settings().server
        return dataclasses.replace(
            HttpLimits(), body_bytes=server.max_body_bytes, connections=server.max_connections
        )

    def _access(self) -> AccessRules:
        server = self._settings().server
        return AccessRules(
            api_key=server.api_key,
            admin_token=self._admin_token,
            allowed_origins=frozenset(server.allowed_origins.split()),
        )
