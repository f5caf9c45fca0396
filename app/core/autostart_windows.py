"""Start at login on Windows: a value of the user's Run key."""

import subprocess
from typing import Protocol

from app.core.autostart import StartCommand
from app.core.errors import FolderUnusable
from app.core.paths import HOME_VARIABLE

RUN = r"Software\Microsoft\Windows\CurrentVersion\Run"
APPROVED = r"Software\Microsoft\Windows\CurrentVersion\Explorer\StartupApproved\Run"
"""Where the Task Manager keeps what the user has switched off: the first byte is odd then."""


class Registry(Protocol):
    """The user's part of the registry, so that tests need no Windows. Raises: OSError."""

    def read(self, key: str, name: str) -> str | bytes | None: ...
    def write(self, key: str, name: str, value: str) -> None: ...
    def delete(self, key: str, name: str) -> None: ...


class RunKey:
    """One value, named for this Coolhead.

    Args:
        start: what is started.
        registry: another than the real one, for tests.
    """

    def __init__(self, start: StartCommand, registry: Registry | None = None) -> None:
        self._start = start
        self._registry = registry or _UserRegistry()

    @property
    def place(self) -> str:
        return rf"HKEY_CURRENT_USER\{RUN}\{self._start.name}"

    def is_on(self) -> bool:
        return self._read(RUN) is not None and not self.is_declined()

    def is_declined(self) -> bool:
        state = self._read(APPROVED)
        return isinstance(state, bytes) and bool(state) and bool(state[0] & 1)

    def switch_on(self) -> None:
        if self._start.env.get(HOME_VARIABLE):
            raise FolderUnusable(
                f"Windows cannot give {HOME_VARIABLE} to what it starts at login. Unset it, or "
                "start Coolhead by a shortcut of your own.",
                path=self.place,
            )
        try:
            self._registry.write(RUN, self._start.name, subprocess.list2cmdline(self._start.argv))
            if self.is_declined():
                self._registry.delete(APPROVED, self._start.name)
        except OSError as error:
            raise FolderUnusable(
                f"{self.place} cannot be written: {error.strerror}.", path=self.place
            ) from error

    def switch_off(self) -> None:
        try:
            self._registry.delete(RUN, self._start.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise FolderUnusable(
                f"{self.place} cannot be removed: {error.strerror}. Remove it in the Task Manager.",
                path=self.place,
            ) from error

    def _read(self, key: str) -> str | bytes | None:
        try:
            return self._registry.read(key, self._start.name)
        except OSError:
            return None


class _UserRegistry:
    """HKEY_CURRENT_USER by `winreg`."""

    def __init__(self) -> None:
        import importlib

        # By name, as the module and its types exist on Windows only.
        self._winreg = importlib.import_module("winreg")

    def read(self, key: str, name: str) -> str | bytes | None:
        with self._winreg.OpenKey(self._winreg.HKEY_CURRENT_USER, key) as opened:
            value: str | bytes | None = self._winreg.QueryValueEx(opened, name)[0]
        return value

    def write(self, key: str, name: str, value: str) -> None:
        with self._winreg.CreateKey(self._winreg.HKEY_CURRENT_USER, key) as opened:
            self._winreg.SetValueEx(opened, name, 0, self._winreg.REG_SZ, value)

    def delete(self, key: str, name: str) -> None:
        access = self._winreg.KEY_SET_VALUE
        with self._winreg.OpenKey(self._winreg.HKEY_CURRENT_USER, key, 0, access) as opened:
            self._winreg.DeleteValue(opened, name)
