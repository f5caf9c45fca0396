"""Whether to start in safe mode: after an unclean end, or after three kills for memory.

Called by the composition at start, at an orderly end, and when the guard reports a kill; on the core
loop, as the files are a few hundred bytes. What follows from it is the app's (`caution.py`).
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from app.core.lifecycle import ExitCause

KILLS_WINDOW_S = 600.0
KILLS_BEFORE_ASKING = 3
KILLS_KEPT = 50
MARKER_NAME = "running.json"
KILLS_NAME = "kills.json"


class RunRecord(msgspec.Struct, frozen=True):
    """Written at start, removed at an orderly end. `boot` tells a power cut from a crash."""

    pid: int
    started_at_s: float
    boot: str = ""
    loaded: list[str] = []
    """Models that were loaded, for the words about it."""


class KillEntry(msgspec.Struct, frozen=True):
    """A kill for memory. `at_s` is wall time, as it must outlive the process."""

    at_s: float
    cause: ExitCause
    model_id: str
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class SafeMode:
    """The decision, with the reason for people; empty when it is off."""

    is_active: bool
    reason: str = ""


def boot_id() -> str:
    """Changes with every boot; empty where the system does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _is_process(pid: int) -> bool:
    if os.name != "posix":
        # os.kill would end the process there; whoever holds the app's lock runs, and we hold it.
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _write(path: Path, data: bytes) -> None:
    """In one step, so that a power cut leaves the old file or the new one; failing is no reason to stop."""
    scratch = path.with_suffix(".new")
    with contextlib.suppress(OSError):
        scratch.write_bytes(data)
        scratch.replace(path)


class RunMarker:
    """Says at the next start whether the last run ended in order."""

    def __init__(self, state: Path, boot: Callable[[], str] = boot_id) -> None:
        self._path = state / MARKER_NAME
        self._boot = boot
        self._record: RunRecord | None = None

    def begin(self, now_s: Callable[[], float] = time.time) -> RunRecord | None:
        """Marks this run; returns what a run that did not end in order has left."""
        before: RunRecord | None = None
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            before = msgspec.json.decode(self._path.read_bytes(), type=RunRecord)
        if before is not None:
            same_boot = before.boot == self._boot()
            if same_boot and before.pid != os.getpid() and _is_process(before.pid):
                before = None  # it runs: a second start with another endpoint
        self._record = RunRecord(os.getpid(), now_s(), self._boot())
        _write(self._path, msgspec.json.encode(self._record))
        return before

    def note_loaded(self, model_ids: list[str]) -> None:
        """Keeps which models are loaded."""
        if self._record is not None:
            self._record = msgspec.structs.replace(self._record, loaded=model_ids)
            _write(self._path, msgspec.json.encode(self._record))

    def end(self) -> None:
        """Marks an orderly end."""
        self._record = None
        with contextlib.suppress(OSError):
            self._path.unlink()


class KillLog:
    """Kills for memory, kept over restarts of guard and app."""

    def __init__(self, state: Path, now_s: Callable[[], float] = time.time) -> None:
        self._path = state / KILLS_NAME
        self._now_s = now_s
        self._entries: list[KillEntry] = []
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._entries = msgspec.json.decode(self._path.read_bytes(), type=list[KillEntry])

    def record(self, cause: ExitCause, model_id: str, sentence: str = "") -> int:
        """Notes a kill; returns how many lie in the window, this one included."""
        self._entries.append(KillEntry(self._now_s(), cause, model_id, sentence))
        self._entries = self._entries[-KILLS_KEPT:]
        _write(self._path, msgspec.json.encode(self._entries))
        return len(self.recent())

    def recent(self, model_id: str = "") -> list[KillEntry]:
        """Kills of the last ten minutes, of one model or all; a clock that went back hides none."""
        since_s = self._now_s() - KILLS_WINDOW_S
        return [
            entry
            for entry in self._entries
            if entry.at_s >= since_s and (not model_id or entry.model_id == model_id)
        ]

    def clear(self) -> None:
        """The user has decided: counting starts anew."""
        self._entries = []
        with contextlib.suppress(OSError):
            self._path.unlink()


def decide(unclean: RunRecord | None, recent_kills: list[KillEntry], boot: str = "") -> SafeMode:
    """Whether to start in safe mode.

    Args:
        unclean: what `RunMarker.begin` returned.
        recent_kills: of the last ten minutes.
        boot: the boot that we are in.
    """
    if len(recent_kills) >= KILLS_BEFORE_ASKING:
        return SafeMode(
            is_active=True,
            reason=f"Models were stopped {len(recent_kills)} times in {KILLS_WINDOW_S / 60:.0f} minutes "
            f"for want of memory. {recent_kills[-1].sentence}".rstrip(),
        )
    if unclean is None:
        return SafeMode(is_active=False)
    loaded = f" with {', '.join(unclean.loaded)} loaded" if unclean.loaded else ""
    how = "the computer went down" if boot and unclean.boot != boot else "Coolhead was ended"
    return SafeMode(
        is_active=True,
        reason=f"Last time {how}{loaded} before it could stop in order.",
    )
