"""Start at login on macOS: a launch agent of the user's. It counts from the next login on."""

import contextlib
import os
import plistlib
from pathlib import Path
from typing import Any

from app.core.autostart import StartCommand
from app.core.errors import FolderUnusable

_DOMAIN = "app.coolhead."


class LaunchAgent:
    """The file `~/Library/LaunchAgents/app.coolhead.<name>.plist`.

    Args:
        start: what is started.
        folder: another than the user's, for tests.
    """

    def __init__(self, start: StartCommand, folder: Path | None = None) -> None:
        self._start = start
        self._label = _DOMAIN + start.name
        folder = folder or Path.home() / "Library" / "LaunchAgents"
        self._file = folder / f"{self._label}.plist"

    @property
    def place(self) -> str:
        return str(self._file)

    def is_on(self) -> bool:
        agent = self._read()
        return agent.get("RunAtLoad") is True and not agent.get("Disabled")

    def is_declined(self) -> bool:
        return bool(self._read().get("Disabled"))

    def switch_on(self) -> None:
        agent: dict[str, Any] = {
            "Label": self._label,
            "ProgramArguments": list(self._start.argv),
            "RunAtLoad": True,
            # Ended by the user it stays ended.
            "KeepAlive": False,
            "ProcessType": "Interactive",
        }
        if self._start.env:
            agent["EnvironmentVariables"] = dict(self._start.env)
        scratch = self._file.with_name(f".{self._file.name}.{os.getpid()}.new")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_bytes(plistlib.dumps(agent))
            scratch.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise FolderUnusable(
                f"{self._file} cannot be written: {error.strerror}. Make its folder writable.",
                path=str(self._file),
            ) from error

    def switch_off(self) -> None:
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise FolderUnusable(
                f"{self._file} cannot be removed: {error.strerror}. Remove it yourself.",
                path=str(self._file),
            ) from error

    def _read(self) -> dict[str, Any]:
        try:
            agent = plistlib.loads(self._file.read_bytes())
        except (OSError, ValueError, plistlib.InvalidFileException):
            return {}
        return agent if isinstance(agent, dict) else {}
