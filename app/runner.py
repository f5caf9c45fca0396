"""From a parsed command line to a running app and back: lock, log, signals, threads, exit status.

Headless, the core loop runs on the main thread and Qt is never imported. With a tray the core loop has
a thread of its own, `core-loop`, and Qt has the main one. Called by `app/__main__.py` only.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import filelock

from app.cli.client import find_running
from app.composition import Core
from app.core.errors import AlreadyRunning, CoolheadError, NotRunning
from app.core.handle import Quit
from app.core.log import start_logging
from app.core.paths import Paths, user_paths
from app.core.settings_file import Loaded, SettingsFile

_log = logging.getLogger(__name__)

FIRST_ONE_LIMIT_S = 20.0
"""How long a second start waits for a first one that is still opening its port."""


def run_app(*, is_headless: bool, port: int | None, ends_with_stdin: bool) -> int:
    """Runs until stopped; the exit status.

    Args:
        is_headless: serve without a tray.
        port: overrides the setting; 0 takes any free port.
        ends_with_stdin: stop when standard input ends (an app started for one call).

    Raises:
        FolderUnusable: when the state folder cannot be written.
        AlreadyRunning: when another one holds the lock and does not answer.
        EndpointError: when the port cannot be opened, headless.
    """
    paths = user_paths()
    paths.prepare()
    lock = filelock.FileLock(paths.lock_file, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        return _raise_the_first(paths)
    with lock:
        loaded = SettingsFile(paths.settings_file).load()
        if not is_headless:
            from app.core.hardware.display import display_available

            problem = display_available()
            if problem:
                print(f"{problem} Serving without a tray.", file=sys.stderr)
                is_headless = True
        stop_logging = start_logging(
            paths.logs, loaded.settings.desktop.log_level, to_stderr=is_headless
        )
        try:
            if is_headless:
                return _run_headless(paths, loaded, port, ends_with_stdin=ends_with_stdin)
            return _run_with_tray(paths, loaded, port)
        finally:
            stop_logging()


def _raise_the_first(paths: Paths) -> int:
    """A second start: asks the first one to show itself."""
    deadline = time.monotonic() + FIRST_ONE_LIMIT_S
    while time.monotonic() < deadline:
        running = find_running(paths)
        if running is not None:
            with contextlib.suppress(CoolheadError):
                running.call("POST", "/admin/show", {})
                where = f" at {running.url}" if running.url else ", its endpoint closed"
                print(f"Coolhead is already running (process {running.pid}){where}.")
                return 0
        time.sleep(0.1)
    raise AlreadyRunning(
        f"Another Coolhead holds {paths.lock_file} and does not answer. End that process, or "
        "wait until it has."
    )


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


def _run_headless(paths: Paths, loaded: Loaded, port: int | None, *, ends_with_stdin: bool) -> int:
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(_serve(paths, loaded, port, ends_with_stdin=ends_with_stdin))


async def _serve(paths: Paths, loaded: Loaded, port: int | None, *, ends_with_stdin: bool) -> int:
    core = Core(paths, loaded, port=port)
    loop = asyncio.get_running_loop()

    def quit_soon(name: str) -> None:
        _log.info("stopping: %s", name)
        core.quit_soon()

    for number, name in ((signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")):
        _on_signal(loop, number, functools.partial(quit_soon, name))
    if hasattr(signal, "SIGHUP"):
        _on_signal(loop, signal.SIGHUP, core.reload_routes_soon)
    if ends_with_stdin:
        threading.Thread(
            target=_wait_for_eof,
            args=(loop, lambda: quit_soon("standard input ended")),
            name="stdin",
            daemon=True,
        ).start()
    await core.start(opens_endpoint=True)
    _settle_memory()
    print(f"Coolhead serves at {core.handle.snapshot.endpoint}", flush=True)
    await core.wait_closed()
    return 0


def _settle_memory() -> None:
    """What start-up made stays for good: the collector need not walk it again while requests wait."""
    gc.collect()
    gc.freeze()


def _on_signal(loop: asyncio.AbstractEventLoop, number: int, action: Callable[[], None]) -> None:
    try:
        loop.add_signal_handler(number, action)
    except NotImplementedError:
        signal.signal(number, lambda _number, _frame: loop.call_soon_threadsafe(action))


def _wait_for_eof(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(action)


class _CoreThread:
    """The core loop on its own thread, for as long as the block lasts."""

    def __init__(self, paths: Paths, loaded: Loaded, port: int | None) -> None:
        self._arguments = (paths, loaded, port)
        self._is_up = threading.Event()
        self._failure: BaseException | None = None
        self.core: Core | None = None
        self._thread = threading.Thread(target=self._run, name="core-loop")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_new_loop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        paths, loaded, port = self._arguments
        try:
            core = Core(paths, loaded, port=port)
            await core.start(opens_endpoint=loaded.settings.desktop.start_endpoint, must_open=False)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            self._failure = error
            self._is_up.set()
            return
        self.core = core
        _settle_memory()
        self._is_up.set()
        await core.wait_closed()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @contextlib.contextmanager
    def running(self) -> Iterator[Core]:
        self._thread.start()
        self._is_up.wait()
        if self._failure is not None or self.core is None:
            self._thread.join()
            raise self._failure or RuntimeError("the core loop ended at once")
        try:
            yield self.core
        finally:
            with contextlib.suppress(NotRunning):  # the tray has asked already
                self.core.handle.submit(Quit())
            self._thread.join(30)
            if self._thread.is_alive():
                _log.error("the core loop did not end within 30 s")


def _run_with_tray(paths: Paths, loaded: Loaded, port: int | None) -> int:
    from app.ui.application import run_tray

    thread = _CoreThread(paths, loaded, port)
    with thread.running() as core:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: core.handle.submit(Quit()))
        return run_tray(core.handle, paths, is_core_alive=thread.is_alive)
