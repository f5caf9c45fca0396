"""What the app and a worker say to each other: one line in, one line out, and an open pipe.

The backend writes the start line (parameters and key) into the worker's stdin, so that no secret is
in argv or the environment; the worker answers with one ready line on its stdout once the model is
loaded. Everything else that an engine prints goes to stderr. The stdin pipe stays open for the
worker's life: its end means that the app is gone. Imported by both sides; standard library only.
"""

import ctypes
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from app.core.models.load_settings import LoadSettings

PR_SET_PDEATHSIG = 1
START_LINE_BYTES = 60 * 1024
"""A pipe takes 64 KiB at once; a start line is written before anyone reads it."""


@dataclass(frozen=True, slots=True)
class StartLine:
    """App to worker. `options` are the engine's own, such as the path of a program."""

    model_id: str
    path: str
    key: str
    load: LoadSettings
    options: dict[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        line = json.dumps(asdict(self), separators=(",", ":")).encode() + b"\n"
        if len(line) > START_LINE_BYTES:
            raise ValueError(f"a start line of {len(line)} bytes does not go into a pipe at once")
        return line


@dataclass(frozen=True, slots=True)
class ReadyLine:
    """Worker to app. A worker that is not loaded yet when it says this answers /health with 503.

    `context_tokens` is per slot; 0 where the engine has not said.
    """

    port: int
    context_tokens: int = 0
    slots: int = 0
    version: str = ""


@dataclass(frozen=True, slots=True)
class FailedLine:
    """Worker to app: it could not start, in the engine's words."""

    failed: str


def parse_start(line: bytes) -> StartLine:
    """Raises: ValueError for a line that is none."""
    try:
        data: dict[str, Any] = json.loads(line)
        load: dict[str, Any] = data["load"]
        load = {name: tuple(v) if isinstance(v, list) else v for name, v in load.items()}
        return StartLine(**{**data, "load": LoadSettings(**load)})
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a start line: {error}") from error


def parse_answer(line: bytes) -> ReadyLine | FailedLine | None:
    """The worker's ready or failed line; None for any other line."""
    if not line.startswith(b"{"):
        return None
    try:
        data: dict[str, Any] = json.loads(line)
        return FailedLine(**data) if "failed" in data else ReadyLine(**data)
    except (ValueError, TypeError):
        return None


class WorkerEnd:
    """The worker's end of the link; made first thing, before the engine is imported.

    From then on everything printed to stdout, by Python or by native code, goes to stderr.
    """

    def __init__(self) -> None:
        die_with_parent()
        self._out = os.dup(1)
        os.dup2(2, 1)
        self.start = parse_start(sys.stdin.buffer.readline())

    def ready(self, line: ReadyLine) -> None:
        self._say(asdict(line))

    def failed(self, reason: str) -> None:
        self._say(asdict(FailedLine(reason)))

    def serve(self, line: ReadyLine) -> NoReturn:
        """Says that it is ready, waits until the app closes the link or is gone, and ends at once.

        No clean end: it would wait for running generations, and there is nothing to save.
        """
        self.ready(line)
        while sys.stdin.buffer.read(4096):
            pass
        sys.stderr.flush()
        os._exit(0)

    def _say(self, data: dict[str, Any]) -> None:
        os.write(self._out, json.dumps(data, separators=(",", ":")).encode() + b"\n")


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent ends, where the kernel can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
