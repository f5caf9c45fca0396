"""Builds every object, wires them, starts and stops them in order: the only file that knows every room.

`runner.py` makes one `Core` on the core loop and waits until it is closed. Commands of the UI, the
command line and a second start all end in `carry_out`.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from app.core.autostart import LoginEntry
from app.core.backends.careful import CarefulPlanner
from app.core.backends.caution import Caution
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.mlx import MlxBackend
from app.core.backends.model_planner import ModelPlanner
from app.core.backends.supervisor import Supervisor
from app.core.errors import CoolheadError, EndpointError
from app.core.event_log import EventLog
from app.core.events import (
    AppStateChanged,
    Event,
    EventBus,
    GuardChanged,
    Notice,
    SettingsChanged,
    WindowRequested,
)
from app.core.handle import (
    ApplySettings,
    Command,
    Handle,
    LeaveSafeMode,
    LoadModel,
    Pause,
    Quit,
    ReloadRoutes,
    ShowWindow,
    Start,
    Stop,
    UnloadModel,
)
from app.core.hardware.probe import probe_machine
from app.core.lifecycle import AppState, ExitCause
from app.core.models.dry_run import dry_run_or_formula
from app.core.models.learning import Learning
from app.core.models.library import ModelLibrary
from app.core.models.spec import ModelSpec
from app.core.paths import Paths
from app.core.router.admin import Admin
from app.core.router.admin_door import AdminDoor
from app.core.router.desktop_pause import DesktopPause
from app.core.router.endpoint import Endpoint
from app.core.router.ladder import Ladder
from app.core.router.picture import Surroundings, take_picture
from app.core.router.reloads import Reloads
from app.core.router.router import Router
from app.core.router.routes_file import write_default
from app.core.settings import Settings
from app.core.settings_file import Loaded, SettingsFile
from app.core.settings_in_force import SettingsInForce
from app.core.settings_meta import Needs
from app.core.state_files import admin_token, write_endpoint, write_private
from app.guard.client import GuardClient

_log = logging.getLogger(__name__)

PICTURE_S = 0.25
LIBRARY_TURNS = 20
"""The model folders are looked through at each so many pictures."""
STOP_DRAIN_S = 20.0
TOLD_S = 3.0
"""After the start, when the tray has come up and hears what is said."""
DOOR_DRAIN_S = 1.0
"""For the calls that asked to quit to have their answer."""
QUIT_DRAIN_S = 0.5
"""Quit breaks off what is being answered: the promise is to be gone within 5 s."""


class Core:
    """Everything but the screen. Thread: the core loop; `handle` is for the others.

    Args:
        paths: prepared.
        loaded: the settings, with what was wrong with them.
        port: overrides the setting; 0 takes any free port.
    """

    def __init__(self, paths: Paths, loaded: Loaded, *, port: int | None = None) -> None:
        self._paths = paths
        self._in_force = SettingsInForce(SettingsFile(paths.settings_file), loaded.settings)
        self._problems = list(loaded.problems)
        self._port = port
        self._phase: AppState | None = AppState.STARTING
        self._reason = ""
        self._quitting: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._library = ModelLibrary(paths, _folders(loaded.settings))
        self._specs: tuple[ModelSpec, ...] = ()
        self._events = EventBus()
        self._events.subscribe(EventLog(paths.events_file))
        self._events.subscribe(self._on_event)
        self._caution = Caution(paths, self._events)
        self._supervisor = Supervisor(
            guard=GuardClient,
            library=self._library,
            planner=CarefulPlanner(
                ModelPlanner(probe_machine, dry_run_or_formula, Learning(paths)), self._caution
            ),
            backends=(
                LlamaCppBackend(self._current, engines_folder=paths.engines),
                MlxBackend(engines_folder=paths.engines),
            ),
            events=self._events,
            settings=self._current,
        )
        self._token = admin_token(paths.token_file)
        self.handle = Handle(asyncio.get_running_loop(), self._events, self.carry_out)
        self._endpoint = Endpoint(
            workers=self._supervisor,
            library=self._library,
            router=self._read_routes(),
            events=self._events,
            settings=self._current,
            snapshot=lambda: self.handle.snapshot,
            execute=self.carry_out,
            admin_token=self._token,
            log_folder=paths.logs,
        )
        self._door = AdminDoor(
            Admin(self.carry_out, lambda: self.handle.snapshot, self._events), self._token
        )
        self._ladder = Ladder(self._supervisor, self._endpoint, self._events)
        self._desktop_pause = DesktopPause(self._current, self._endpoint.pause, self._events)
        self._login_entry = LoginEntry()
        self._reloads = Reloads(self._supervisor, self._endpoint, self._caution)
        machine = probe_machine()
        self._caution.begin(machine)
        self._ram_total_bytes = machine.ram_total_bytes
        self._ram_available_bytes = machine.ram_available_bytes

    # Life.

    async def start(self, *, opens_endpoint: bool, must_open: bool = True) -> None:
        """Starts the guard, and opens the endpoint if asked to.

        Args:
            opens_endpoint: serve at once.
            must_open: an endpoint that cannot be opened ends the start; otherwise the app stays up
                and says why, so that the user can mend it there.

        Raises:
            GuardError: there is no guard, so nothing could be loaded.
            EndpointError: the port cannot be opened; everything is stopped again.
        """
        for problem in self._problems:
            _log.warning("%s", problem)
        try:
            await self._supervisor.start()
            await self._door.open()
            self._write_endpoint_file()
            if opens_endpoint:
                await self._open_at_start(must_open=must_open)
            else:
                self._set_phase(None)
        except CoolheadError:
            await self._door.close(0)
            await self._supervisor.stop_all(ExitCause.STOPPED_BY_USER)
            self._caution.end()
            self._remove_endpoint_file()
            raise
        loop = asyncio.get_running_loop()
        self._ticker = loop.create_task(self._tick(), name="picture")
        self._keep(self._desktop_pause.run(), "desktop pause")
        is_wanted = self._current().desktop.autostart
        self._keep(self._login_entry.set(is_wanted, is_change=False), "start at login")
        loop.call_later(TOLD_S, self._caution.tell)

    async def _open_at_start(self, *, must_open: bool) -> None:
        try:
            await self._open()
        except EndpointError as error:
            if must_open:
                raise
            _log.error("the endpoint stays closed: %s", error.message)
            notice = Notice("endpoint", error.title, error.message, is_serious=True)
            asyncio.get_running_loop().call_later(TOLD_S, self._events.publish, notice)

    async def wait_closed(self) -> None:
        """Returns once `Quit` has been carried out."""
        await self._closed.wait()

    def quit_soon(self) -> None:
        """Begins to quit; asked again, it changes nothing. For signal handlers."""
        if self._quitting is None:
            self._quitting = asyncio.get_running_loop().create_task(self._quit(), name="quit")

    def reload_routes_soon(self) -> None:
        """Reads the rules again, for SIGHUP; a bad file is logged and the old rules stay."""

        async def reload() -> None:
            try:
                await self._endpoint.reload_routes()
            except CoolheadError as error:
                _log.error("the rules were not reloaded: %s", error.message)

        self._keep(reload(), "reload routes")

    # Commands.

    async def carry_out(self, command: Command) -> object:
        """Carries out a command of the user's.

        Raises:
            CoolheadError: what stopped it, in words.
        """
        match command:
            case Start():
                await self._open()
            case Stop():
                await self._close(STOP_DRAIN_S)
            case Quit():
                self.quit_soon()
                await self.wait_closed()
            case Pause(is_paused=is_paused):
                self._endpoint.pause(is_paused)
                if not is_paused:
                    self._desktop_pause.waive()
            case LoadModel(model_id=model_id):
                if self._caution.sentence:
                    # A slip of the pen is no decision.
                    await asyncio.to_thread(self._library.find, model_id)
                    self._caution.allow_load()
                self._supervisor.forgive(model_id)
                await self._endpoint.load(model_id)
            case UnloadModel(model_id=model_id):
                if self._supervisor.worker(model_id) is None:
                    await asyncio.to_thread(self._library.find, model_id)  # a slip is told
                self._endpoint.unload(model_id)
            case ApplySettings(changes=changes):
                return await self._apply(changes)
            case ReloadRoutes():
                return await self._endpoint.reload_routes()
            case ShowWindow():
                self._events.publish(WindowRequested(at=time.time()))
            case LeaveSafeMode():
                self._leave_safe_mode()
            case _:
                raise CoolheadError(f"There is no command {type(command).__name__}.")
        self._picture()
        return None

    async def _open(self) -> None:
        if self._endpoint.is_open:
            return
        self._set_phase(AppState.STARTING)
        try:
            await self._endpoint.open(self._port)
        except CoolheadError as error:
            self._set_phase(AppState.FAILED, error.message)
            raise
        self._tell_endpoint()
        self._set_phase(None)

    async def _close(self, drain_s: float) -> None:
        self._set_phase(AppState.STOPPING)
        try:
            await self._endpoint.close(drain_s)
            await self._supervisor.stop_all(ExitCause.STOPPED_BY_USER, keep_guard=True)
        finally:
            self._tell_endpoint()
            self._set_phase(None, "stopped by you")

    async def _quit(self) -> None:
        """Whatever goes wrong on the way is logged; the app ends all the same."""
        self._set_phase(AppState.STOPPING)
        await self._end_tasks()
        try:
            await self._endpoint.close(QUIT_DRAIN_S)
        except CoolheadError as error:
            _log.error("closing the endpoint: %s", error.message)
        finally:
            try:
                await self._supervisor.stop_all(ExitCause.STOPPED_BY_USER)
            finally:
                await self._end_picture()
                self._caution.end()
                await self._door.close(DOOR_DRAIN_S)
                self._remove_endpoint_file()
                self._set_phase(AppState.STOPPED, "stopped by you")
                self._closed.set()

    async def _end_picture(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticker

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _leave_safe_mode(self) -> None:
        """Models that were loaded smaller get their full size once their requests are answered."""
        was_smaller = self._caution.leave()
        for view in self._supervisor.workers():
            self._supervisor.forgive(view.model_id)
        if was_smaller:
            self._keep(self._reload_at_full_size(), "full size")

    async def _reload_at_full_size(self) -> None:
        try:
            await self._reloads.reload_all()
        except CoolheadError as error:
            _log.error("a model could not be loaded at full size: %s", error.message)

    async def _apply(self, changes: Mapping[str, object]) -> str:
        """Checks all, saves, then carries out; says what was needed."""
        change = await self._in_force.change(changes)
        settings = change.after
        self._library.look_in(_folders(settings))
        self._endpoint.settings_changed()
        self._desktop_pause.settings_changed()
        if change.before.desktop.autostart != settings.desktop.autostart:
            await self._login_entry.set(settings.desktop.autostart, is_change=True)
        self._events.publish(SettingsChanged(tuple(changes), at=time.time()))
        if Needs.RELOAD in change.needs:
            await self._reloads.reload_all()
        return change.strongest.value

    # What is so.

    def _current(self) -> Settings:
        return self._in_force.settings

    def _set_phase(self, phase: AppState | None, reason: str = "") -> None:
        before = self.handle.snapshot.state
        self._phase, self._reason = phase, reason
        self._picture()
        after = self.handle.snapshot.state
        if after is not before:
            self._events.publish(AppStateChanged(after, reason, at=time.time()))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, GuardChanged) and not event.is_running:
            self._ladder.guard_lost()
        # The picture is taken once all who hear of it have acted on it.
        asyncio.get_running_loop().call_soon(self._picture)

    async def _tick(self) -> None:
        turn = 0
        while True:
            if turn % LIBRARY_TURNS == 0:
                self._mend_endpoint_file()
                self._specs = await asyncio.to_thread(self._library.specs)
            turn += 1
            await asyncio.sleep(PICTURE_S)
            self._ram_available_bytes = psutil.virtual_memory().available
            self._picture()

    def _picture(self) -> None:
        old = self.handle.snapshot
        around = Surroundings(
            pid=os.getpid(),
            settings=self._current(),
            models=self._specs,
            problems=self._all_problems(),
            ram_total_bytes=self._ram_total_bytes,
            ram_available_bytes=self._ram_available_bytes,
            phase=self._phase,
            reason=self._reason,
            safe_mode_sentence=self._caution.sentence,
        )
        new = take_picture(self._supervisor, self._endpoint, self._ladder, around)
        if replace(new, version=old.version) != old:
            self.handle.put(replace(new, version=old.version + 1))

    def _all_problems(self) -> tuple[str, ...]:
        found = [*self._problems, *self._desktop_pause.problems, self._login_entry.problem]
        return tuple(filter(None, found))

    def _read_routes(self) -> Router:
        """The user's rules; a bad file is reported and must not stop the start."""
        path = self._paths.routes_file
        try:
            write_default(path)
            return Router.from_config(path)
        except CoolheadError as error:
            self._problems.append(error.message)
            _log.error("the routing rules are not used: %s", error.message)
            router = Router.default()
            router.path = path
            return router

    def _write_endpoint_file(self) -> None:
        write_endpoint(
            self._paths,
            host=self._current().server.listen,
            port=self._endpoint.port,
            admin_port=self._door.port,
            url=self._endpoint.url,
        )

    def _tell_endpoint(self) -> None:
        """Once the app runs, a full disk stops nothing: the file's admin port stays right."""
        try:
            self._write_endpoint_file()
        except CoolheadError as error:
            _log.error("%s", error.message)

    def _mend_endpoint_file(self) -> None:
        """Where somebody has swept the state folder, the command line must find us again."""
        if self._paths.endpoint_file.exists():
            return
        try:
            self._paths.prepare()
            write_private(self._paths.token_file, self._token)
            self._write_endpoint_file()
        except CoolheadError as error:
            _log.warning("the state folder cannot be mended: %s", error.message)

    def _remove_endpoint_file(self) -> None:
        with contextlib.suppress(OSError):
            self._paths.endpoint_file.unlink(missing_ok=True)

    def _keep(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _folders(settings: Settings) -> list[Path]:
    return [Path(part) for part in settings.model.folders.split(os.pathsep) if part]
