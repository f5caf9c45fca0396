"""Start at login: one entry of our own in whatever the system starts programs from, only when asked for.

One file for each system (`autostart_linux.py`, `autostart_macos.py`, `autostart_windows.py`) behind
`Autostart`; called by the composition in an executor. A Coolhead with a home of its own
(`COOLHEAD_HOME`) has an entry of its own, and nobody else's is ever touched.
"""

import asyncio
import hashlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import app
from app.core.errors import CoolheadError
from app.core.paths import HOME_VARIABLE

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartCommand:
    """What is started at login.

    Attributes:
        argv: the command line.
        env: what it needs beside the session's own environment.
        name: of the entry; one for each home.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    name: str = "coolhead"


class Autostart(Protocol):
    """One entry. Blocking; thread: any, one call at a time."""

    @property
    def place(self) -> str:
        """Where the entry is, for people."""
        ...

    def is_on(self) -> bool:
        """Whether the system would start what the entry says."""
        ...

    def is_declined(self) -> bool:
        """Whether the entry was switched off by the desktop's own means; it is left so."""
        ...

    def switch_on(self) -> None:
        """Writes the entry. Raises: FolderUnusable."""
        ...

    def switch_off(self) -> None:
        """Removes the entry, if there is one. Raises: FolderUnusable."""
        ...


def autostart(start: StartCommand | None = None) -> Autostart:
    """The entry of this Coolhead on this system."""
    start = start or start_command()
    if sys.platform == "win32":
        from app.core.autostart_windows import RunKey

        return RunKey(start)
    if sys.platform == "darwin":
        from app.core.autostart_macos import LaunchAgent

        return LaunchAgent(start)
    from app.core.autostart_linux import DesktopEntry

    return DesktopEntry(start)


def apply(entry: Autostart, *, is_wanted: bool, is_change: bool) -> None:
    """Makes the entry what the setting says.

    Args:
        entry: of this Coolhead.
        is_wanted: the setting.
        is_change: the user has just changed it. At a mere start an entry that the desktop's own
            means have switched off stays off.

    Raises:
        FolderUnusable: when it cannot be written or removed.
    """
    if not is_wanted:
        entry.switch_off()
    elif is_change or not entry.is_declined():
        # Written anew each time, as the program may have moved since.
        entry.switch_on()


def start_command(environ: Mapping[str, str] | None = None) -> StartCommand:
    """How this very Coolhead is started: frozen, installed, or from a checkout."""
    home = (os.environ if environ is None else environ).get(HOME_VARIABLE, "")
    if not home:
        return StartCommand(_argv())
    home = str(Path(home).expanduser().absolute())
    mark = hashlib.sha256(home.encode()).hexdigest()[:8]
    return StartCommand(_argv(), {HOME_VARIABLE: home}, f"coolhead-{mark}")


def _argv() -> tuple[str, ...]:
    if getattr(sys, "frozen", False):
        return (sys.executable,)
    # Of a virtual environment the link counts, not what it leads to.
    folder = Path(sys.executable).parent
    for name in ("coolhead.exe", "coolhead"):
        if (folder / name).is_file():
            return (str(folder / name),)
    package_parent = str(Path(app.__file__).resolve().parent.parent)
    code = (
        f"import runpy, sys; sys.path.insert(0, {package_parent!r}); "
        "runpy.run_module('app', run_name='__main__', alter_sys=True)"
    )
    return (sys.executable, "-P", "-c", code)


class LoginEntry:
    """The app's own entry, kept as the setting says. Thread: core loop.

    `problem` says what stopped the last try; empty where nothing did.
    """

    def __init__(self) -> None:
        self.problem = ""

    async def set(self, is_wanted: bool, *, is_change: bool) -> None:
        """Makes or removes the entry, off the loop; what stops it is kept in `problem`."""
        self.problem = ""
        try:
            await asyncio.to_thread(
                lambda: apply(autostart(), is_wanted=is_wanted, is_change=is_change)
            )
        except CoolheadError as error:
            _log.error("start at login: %s", error.message)
            self.problem = error.message
