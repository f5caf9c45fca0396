"""The GPUs that were there last time, so that their absence is noticed before anything is loaded.

A driver that is gone after an update must not send a model that lived on a card into RAM and swap at
login: where a GPU is missing, nothing is loaded unasked. Kept in the state folder; blocking.
"""

import json
import logging
import os
from pathlib import Path

from app.core.hardware.machine import Gpu, Machine
from app.core.paths import Paths

_log = logging.getLogger(__name__)


def missing_gpus(paths: Paths, machine: Machine, *, counts_idle: bool = False) -> tuple[str, ...]:
    """Names of the GPUs that could be used last time and cannot now.

    Args:
        paths: whose state folder remembers them.
        machine: as it is now.
        counts_idle: a GPU that is there counts, even where the engine asked cannot use it.
    """
    now = [_identity(gpu) for gpu in (machine.gpus if counts_idle else machine.usable_gpus)]
    missing = []
    for identity, name in _read(_file(paths)):
        if identity in now:
            now.remove(identity)
        else:
            missing.append(name)
    return tuple(missing)


def remember_gpus(paths: Paths, machine: Machine) -> None:
    """Keeps what can be used now; called once the user knows of what is missing."""
    rows = [(_identity(gpu), gpu.name) for gpu in machine.usable_gpus]
    path = _file(paths)
    scratch = path.with_suffix(f".{os.getpid()}.new")
    try:
        scratch.write_text(json.dumps(rows), encoding="utf-8")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        _log.warning("the GPUs that were seen cannot be kept in %s: %s", path, error)


def missing_sentence(names: tuple[str, ...]) -> str:
    """What is missing and what follows, for a notice; empty where nothing is."""
    if not names:
        return ""
    verb = "was" if len(names) == 1 else "were"
    return (
        f"{' and '.join(names)} {verb} here last time and cannot be used now, so nothing is loaded "
        "unasked. After a driver update, restart the machine; `coolhead doctor` says what is found."
    )


def _identity(gpu: Gpu) -> str:
    return gpu.uuid or f"{gpu.pci} {gpu.name}"


def _file(paths: Paths) -> Path:
    return paths.state / "gpus.json"


def _read(path: Path) -> list[tuple[str, str]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        return [(str(identity), str(name)) for identity, name in rows]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        _log.warning("%s cannot be read (%s)", path, error)
        return []
