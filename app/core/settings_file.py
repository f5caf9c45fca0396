"""`settings.yaml`: only what differs from the defaults, written in one rename.

A value that is wrong falls back to its default and is reported with its path. Reading changes nothing;
before a file that is not wholly understood is written anew, a copy of it is kept beside.
Thread: one `SettingsFile` belongs to the core loop, or to one verb of the command line.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from app.core.errors import FolderUnusable, SettingsInvalid
from app.core.settings import Settings, describe


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings as read, and what was wrong with the file, in sentences."""

    settings: Settings
    problems: tuple[str, ...] = ()


class SettingsFile:
    """Reads and writes `settings.yaml`; the one writer of that file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Loaded:
        """What the file says; never raises: a start must not hang on a typing error."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return Loaded(Settings())
        except (OSError, UnicodeDecodeError) as error:
            return Loaded(
                Settings(), (f"{self.path} cannot be read ({error}); defaults are used.",)
            )
        try:
            tree = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe loaders
        except yaml.YAMLError as error:
            line = " ".join(str(error).split())
            return Loaded(Settings(), (f"{self.path} is not YAML: {line}; defaults are used.",))
        if tree is None:
            return Loaded(Settings())
        settings, problems = Settings(), []
        for key, value in _flatten(tree):
            try:
                settings = settings.replace({key: value})
            except SettingsInvalid as error:
                problems.append(f"{self.path}: {error.message} The default is used.")
        return Loaded(settings, tuple(problems))

    def save(self, settings: Settings) -> None:
        """Writes what differs from the defaults, in one rename, so that a crash loses nothing.

        Raises:
            FolderUnusable: when the file cannot be written.
        """
        tree: dict[str, Any] = {}
        for key, value in settings.changed().items():
            section, name, *device = key.split(".", 2)
            if device:
                tree.setdefault(section, {}).setdefault(name, {})[device[0]] = value
            else:
                tree.setdefault(section, {})[name] = value
        scratch = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.load().problems:
                self._set_aside()
            # A key may be among the settings: nobody else may read them.
            with open(scratch, "w", encoding="utf-8", opener=_private) as file:
                yaml.safe_dump(tree, file, sort_keys=False, allow_unicode=True)
            scratch.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise FolderUnusable(
                f"Settings cannot be saved to {self.path}: {error.strerror}. "
                "Make the folder writable and try again.",
                path=str(self.path),
            ) from error

    def _set_aside(self) -> None:
        """Keeps a copy of a file that is not wholly understood before it is written anew."""
        kept = self.path.with_name(f"{self.path.stem}.damaged-{int(time.time())}.yaml")
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(self.path, kept)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _flatten(tree: object) -> Iterator[tuple[str, object]]:
    if not isinstance(tree, dict):
        yield "settings", tree
        return
    for section, values in tree.items():
        if not isinstance(values, dict):
            yield str(section), values
            continue
        for name, value in values.items():
            key = f"{section}.{name}"
            if isinstance(value, dict) and _is_per_device(key):
                for device, size in value.items():
                    yield f"{key}.{device}", size
            else:
                yield key, value


def _is_per_device(key: str) -> bool:
    try:
        return describe(key, may_lack_device=True).per_device
    except SettingsInvalid:
        return False
