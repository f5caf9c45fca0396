"""Start at login on Linux: a desktop entry in the user's XDG autostart folder."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from app.core.autostart import StartCommand
from app.core.errors import FolderUnusable

_OURS = "X-Coolhead=true"
_SWITCHED_OFF = {"Hidden=true", "X-GNOME-Autostart-enabled=false"}
_RESERVED = frozenset(" \t\n\"'\\><~|&;$*?#()`")
_ESCAPED_IN_QUOTES = frozenset('"`$\\')


class DesktopEntry:
    """The file `<config>/autostart/<name>.desktop`; one without our mark is somebody else's."""

    def __init__(self, start: StartCommand, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        config = env.get("XDG_CONFIG_HOME", "")
        folder = Path(config) if config.startswith("/") else Path.home() / ".config"
        self._file = folder / "autostart" / f"{start.name}.desktop"
        self._start = start

    @property
    def place(self) -> str:
        return str(self._file)

    def is_on(self) -> bool:
        lines = self._lines()
        return bool(lines) and not lines & _SWITCHED_OFF

    def is_declined(self) -> bool:
        return bool(self._lines() & _SWITCHED_OFF)

    def switch_on(self) -> None:
        words = self._start.argv
        if self._start.env:
            words = ("env", *(f"{key}={value}" for key, value in self._start.env.items()), *words)
        text = "\n".join(
            (
                "[Desktop Entry]",
                "Type=Application",
                "Name=Coolhead",
                "Comment=Runs local language models behind one endpoint",
                f"Exec={' '.join(_quoted(word) for word in words)}",
                "Terminal=false",
                "NoDisplay=true",
                "X-GNOME-Autostart-enabled=true",
                _OURS,
                "",
            )
        )
        scratch = self._file.with_name(f".{self._file.name}.{os.getpid()}.new")
        try:
            if self._file.exists() and not self._is_ours():
                raise FolderUnusable(
                    f"{self._file} was not written by Coolhead and is left alone. Remove it to "
                    "start Coolhead at login.",
                    path=str(self._file),
                )
            self._file.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(text, encoding="utf-8")
            scratch.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise FolderUnusable(
                f"{self._file} cannot be written: {error.strerror}. Make its folder writable.",
                path=str(self._file),
            ) from error

    def switch_off(self) -> None:
        if not self._is_ours():
            return
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise FolderUnusable(
                f"{self._file} cannot be removed: {error.strerror}. Remove it yourself.",
                path=str(self._file),
            ) from error

    def _is_ours(self) -> bool:
        return _OURS in self._lines()

    def _lines(self) -> set[str]:
        try:
            text = self._file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return set()
        return {line.replace(" ", "") for line in text.splitlines()}


def _quoted(word: str) -> str:
    """A word of an Exec line: quoted by its own rules, then escaped as any string of the file is."""
    word = word.replace("%", "%%")
    if not word or _RESERVED & set(word):
        word = "".join("\\" + each if each in _ESCAPED_IN_QUOTES else each for each in word)
        word = f'"{word}"'
    return word.replace("\\", "\\\\")
