"""A child process that fetches something into a folder: watched by the folder's growth, and ended.

Called by `wheel.py` and `hub.py`, on the caller's thread. The child has a process group of its own: a
Ctrl-C at the terminal reaches us first, and we end the whole group before anything is cleaned up.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import DownloadFailed

POLL_S = 0.1
STALL_S = 300.0
"""A source that sends nothing for this long is given up; pip's own timeouts come long before."""

END_S = 10.0
LOG_TAIL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Ended:
    """How the child ended: its status, what it printed, and the end of what it complained."""

    status: int
    output: str
    complaint: str


def run_fetch(
    argv: Sequence[str],
    scratch: Path,
    *,
    env: Mapping[str, str],
    grown: Callable[[int], None],
    cancelled: threading.Event | None = None,
    stall_s: float = STALL_S,
) -> Ended:
    """Runs a program until it ends; none of its processes is left, whatever happens here.

    Args:
        argv: the program.
        scratch: the folder it writes into, its temporary files included.
        env: its whole environment.
        grown: called with the bytes in `scratch` so far, about ten times a second.
        cancelled: once set, the program is ended.
        stall_s: seconds without growth after which it is ended.

    Raises:
        DownloadFailed: it was cancelled, made no progress, or could not be started.
    """
    out, err = scratch / ".out", scratch / ".err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=dict(env),
                cwd=scratch,
                start_new_session=True,
                creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
            )
        except OSError as error:
            raise DownloadFailed(f"{argv[0]} could not be started: {error.strerror}.") from error
        try:
            _watch(child, scratch, grown, cancelled, stall_s)
        finally:
            _end(child)
    return Ended(child.returncode, _tail(out), _tail(err))


def _watch(
    child: subprocess.Popen[bytes],
    scratch: Path,
    grown: Callable[[int], None],
    cancelled: threading.Event | None,
    stall_s: float,
) -> None:
    size, last_growth = -1, time.monotonic()
    while True:
        try:
            child.wait(POLL_S)
            return
        except subprocess.TimeoutExpired:
            pass
        if cancelled is not None and cancelled.is_set():
            raise DownloadFailed("The download was cancelled; nothing of it is left.")
        now = folder_bytes(scratch)
        if now != size:
            size, last_growth = now, time.monotonic()
            grown(now)
        elif time.monotonic() - last_growth > stall_s:
            raise DownloadFailed(
                f"The download got nothing for {stall_s:.0f} seconds and was given up. Check the "
                "network and try again."
            )


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and all it started; it has nothing to save."""
    if sys.platform == "win32":
        if child.poll() is None:
            child.kill()
    else:
        # Also after the child has ended by itself: helpers of its own must not outlive it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait(END_S)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder that is being written to."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(base) / name).stat().st_size
    return total


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_TAIL_BYTES))
        return file.read().decode("utf-8", "replace").strip()
