"""The admin part of the endpoint: how the command line and a second start reach the running app.

On loopback, with the token of the state folder (`access.py` has checked it). Every call becomes a
command for the core's own executor, the same that the tray's commands go through. Core loop only.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from app.core.errors import CoolheadError, PathUnknown, RequestForbidden, RequestInvalid
from app.core.events import Event, EventBus
from app.core.handle import (
    ApplySettings,
    Command,
    LeaveSafeMode,
    LoadModel,
    Pause,
    Quit,
    ReloadRoutes,
    ShowWindow,
    Snapshot,
    Start,
    Stop,
    UnloadModel,
)
from app.core.router.http_types import ClientGoneError, Exchange

_log = logging.getLogger(__name__)

ADMIN = "/admin/"
EVENTS_WAITING = 256
EVENTS_QUIET_S = 15.0

Execute = Callable[[Command], Awaitable[object]]


class _Body(msgspec.Struct):
    """All that admin calls may carry."""

    model: str = ""
    paused: bool = True
    changes: dict[str, str | int | float | bool | None] = {}


_decoder = msgspec.json.Decoder(_Body)


class Admin:
    """Thread: core loop only.

    Args:
        execute: the core's executor of commands.
    """

    def __init__(
        self, execute: Execute, snapshot: Callable[[], Snapshot], events: EventBus
    ) -> None:
        self._execute = execute
        self._snapshot = snapshot
        self._events = events
        self._later: set[asyncio.Task[None]] = set()
        self._listeners: set[asyncio.Queue[Event]] = set()

    async def handle(self, exchange: Exchange) -> None:
        """Answers one call below `/admin/`.

        Raises:
            PathUnknown: no such call.
            RequestInvalid: a body that does not fit.
            CoolheadError: whatever stopped the command.
        """
        request = exchange.request
        if not request.is_admin:
            raise RequestForbidden("The admin token is missing.", status=401)
        name = request.path[len(ADMIN) :].strip("/")
        if request.method == "GET" and name == "status":
            exchange.send(200, msgspec.json.encode(status_of_app(self._snapshot())))
            return
        if request.method == "GET" and name == "events":
            await self._send_events(exchange)
            return
        command = self._command(request.method, name, request.body)
        if isinstance(command, Stop | Quit):
            # Stopping waits for the answers that are on their way, and this is one of them.
            exchange.send(200, b'{"ok":true}')
            self._run_later(command)
            return
        result = await self._execute(command)
        exchange.send(200, msgspec.json.encode({"ok": True, "result": result}, enc_hook=str))

    @staticmethod
    def _command(method: str, name: str, raw: bytes) -> Command:
        if method != "POST":
            raise PathUnknown(f"There is no {method} {ADMIN}{name} here.")
        try:
            body = _decoder.decode(raw) if raw else _Body()
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RequestInvalid(f"The body does not fit: {error}.") from error
        if name in {"load", "unload"} and not body.model:
            raise RequestInvalid('The body must name a model, as in {"model": "NAME"}.')
        made: Mapping[str, Callable[[], Command]] = {
            "start": Start,
            "stop": Stop,
            "quit": Quit,
            "show": ShowWindow,
            "pause": lambda: Pause(body.paused),
            "resume": lambda: Pause(False),
            "load": lambda: LoadModel(body.model),
            "unload": lambda: UnloadModel(body.model),
            "settings": lambda: ApplySettings(dict(body.changes)),
            "routes/reload": ReloadRoutes,
            "safe-mode/leave": LeaveSafeMode,
        }
        if name not in made:
            raise PathUnknown(f"There is no {ADMIN}{name} here.")
        return made[name]()

    def _run_later(self, command: Command) -> None:
        async def run() -> None:
            await asyncio.sleep(0)
            try:
                await self._execute(command)
            except CoolheadError as error:  # its client has its answer already
                _log.error("%s: %s", type(command).__name__, error.message)

        task = asyncio.get_running_loop().create_task(run(), name=f"admin {type(command).__name__}")
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def close(self) -> None:
        """Ends every event stream, so that stopping need not wait for them."""
        for queue in list(self._listeners):
            queue.put_nowait(_END)

    async def _send_events(self, exchange: Exchange) -> None:
        """Events as they happen, one JSON object each, until the client leaves."""
        queue: asyncio.Queue[Event] = asyncio.Queue()

        def take(event: Event) -> None:
            if queue.qsize() < EVENTS_WAITING:
                queue.put_nowait(event)

        unsubscribe = self._events.subscribe(take)
        self._listeners.add(queue)
        try:
            exchange.start(200, ((b"content-type", b"text/event-stream"),))
            await exchange.write(b": events\n\n")
            while True:
                try:
                    async with asyncio.timeout(EVENTS_QUIET_S):
                        event = await queue.get()
                except TimeoutError:
                    await exchange.write(b": quiet\n\n")
                    continue
                if event is _END:
                    break
                await exchange.write(b"data: " + msgspec.json.encode(event_tree(event)) + b"\n\n")
            exchange.finish()
        except ClientGoneError:
            pass
        finally:
            self._listeners.discard(queue)
            with contextlib.suppress(ValueError):
                unsubscribe()


_END = Event()


def event_tree(event: Event) -> dict[str, object]:
    """An event with its name, for JSON."""
    fields = msgspec.to_builtins(event)
    return {"event": type(event).__name__, **fields}


def status_of_app(snapshot: Snapshot) -> dict[str, object]:
    """The snapshot for JSON; the client key is not in it."""
    tree: dict[str, object] = msgspec.to_builtins(snapshot)
    tree["pressure_level"] = snapshot.pressure.name.lower()
    settings = tree["settings"]
    if isinstance(settings, dict) and settings["server"]["api_key"]:
        settings["server"]["api_key"] = "(set)"
    tree["cap_kind"] = snapshot.cap_kind.value
    return tree
