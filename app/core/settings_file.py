"""`settings.yaml`: only what differs from the defaults, written in one rename.

A value that is wrong falls back to its default and is reported once with its path; a damaged file is
kept beside under another name, so that nothing the user wrote is lost.
Thread: one `SettingsFile` belongs to the core loop, or to one verb of the command line.
"""

import contextlib
import os
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
            kept = self._set_aside()
            where = f" A copy is kept as {kept.name}." if kept else ""
            line = " ".join(str(error).split())
            return Loaded(
                Settings(), (f"{self.path} is not YAML: {line}; defaults are used.{where}",)
            )
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
            scratch.write_text(
                yaml.safe_dump(tree, sort_keys=False, allow_unicode=True), encoding="utf-8"
            )
            scratch.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise FolderUnusable(
                f"Settings cannot be saved to {self.path}: {error.strerror}. "
                "Make the folder writable and try again.",
                path=str(self.path),
            ) from error

    def _set_aside(self) -> Path | None:
        kept = self.path.with_name(f"{self.path.stem}.damaged-{int(time.time())}.yaml")
        try:
            self.path.replace(kept)
        except OSError:
            return None
        return kept


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
