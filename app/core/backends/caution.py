"""Safe mode, and GPUs that are missing: what is held back until the user has decided.

After an unclean end models are served with smaller settings. After three kills for memory within ten
minutes, in this run or the last, and where a GPU of last time cannot be used, nothing is loaded
unasked; what is loaded goes on. To load a model by hand is to decide: it starts, smaller after
kills. Leaving safe mode brings everything back. Made by the composition; asked by `CarefulPlanner`.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from app.core.backends.recovery import LEAST_CONTEXT_TOKENS
from app.core.errors import AdmissionClosed
from app.core.events import Event, EventBus, Notice, WorkerExited, WorkerStateChanged
from app.core.hardware.last_seen import missing_gpus, missing_sentence, remember_gpus
from app.core.hardware.machine import Machine
from app.core.lifecycle import WorkerState
from app.core.paths import Paths
from app.core.settings import Settings
from app.guard.safe_mode import KILLS_BEFORE_ASKING, KillLog, RunMarker, boot_id, decide

_log = logging.getLogger(__name__)

RETRY_S = 60
LEAVE = "leave safe mode (its entry in the tray's menu, or `coolhead safe-mode leave`)"
LOAD = "load one yourself (`coolhead load MODEL`)"
_IN_MEMORY = frozenset({WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING})


class Caution:
    """Thread: core loop, its one writer; `check`, `reduce` and `look_at_gpus` from any thread.

    Args:
        paths: whose state folder holds the marker of this run, the kills and the GPUs.
        boot: names the boot that we are in; tests give their own.
    """

    def __init__(self, paths: Paths, events: EventBus, boot: Callable[[], str] = boot_id) -> None:
        self._paths = paths
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._boot = boot
        self._marker = RunMarker(paths.state, boot)
        self._kills = KillLog(paths.state)
        self._loaded: dict[str, None] = {}
        self._smaller = ""  # why settings are smaller; empty for full size
        self._asks = ""  # why nothing is loaded unasked
        self._missing: tuple[str, ...] = ()
        self._told_missing: tuple[str, ...] = ()
        self._is_gpu_waived = False
        events.subscribe(self._hear)

    # Life.

    def begin(self, machine: Machine) -> None:
        """Marks this run, and looks at how the last one ended and what it ran on.

        Args:
            machine: as it is now.
        """
        unclean = self._marker.begin()
        recent = self._kills.recent()
        found = decide(unclean, recent, self._boot())
        if found.is_active:
            self._smaller = found.reason
            if len(recent) >= KILLS_BEFORE_ASKING:
                self._asks = found.reason
        self._missing = self._told_missing = missing_gpus(self._paths, machine, counts_idle=True)

    def end(self) -> None:
        """Marks an orderly end."""
        self._marker.end()

    def _hear(self, event: Event) -> None:
        if isinstance(event, WorkerStateChanged):
            before = list(self._loaded)
            self._loaded.pop(event.model_id, None)
            if event.state in _IN_MEMORY:
                self._loaded[event.model_id] = None
            if list(self._loaded) != before:
                self._marker.note_loaded(list(self._loaded))
        elif isinstance(event, WorkerExited) and event.cause.is_memory:
            count = self._kills.record(event.cause, event.model_id, event.sentence)
            if count >= KILLS_BEFORE_ASKING and not self._asks:
                self._asks = self._smaller = decide(None, self._kills.recent()).reason
                self.tell()

    # What is so.

    @property
    def sentence(self) -> str:
        """What is held back, why, and how to undo it; empty while nothing is."""
        if self._missing:
            return f"{missing_sentence(self._missing)} To run models without, {LOAD} or {LEAVE}."
        if self._asks:
            return f"{self._asks} No model is loaded unasked: {LOAD}, which starts it smaller, or {LEAVE}."
        if self._smaller:
            return (
                f"{self._smaller} Until you say otherwise models are given the quiet preset's "
                f"figures, and half of what is set beyond it. To undo it {LEAVE}."
            )
        return ""

    def tell(self) -> None:
        """Publishes what is held back, if anything is."""
        sentence = self.sentence
        if sentence:
            _log.warning("%s", sentence)
            title = "A GPU is missing" if self._missing else "Safe mode"
            self._events.publish(Notice("caution", title, sentence, True, at=time.time()))

    def check(self, model_id: str, machine: Callable[[], Machine]) -> None:
        """Whether a load may begin at all; asked first, as it costs next to nothing.

        Args:
            model_id: what is to be loaded.
            machine: reads it; a GPU that is back lifts what its absence has brought.

        Raises:
            AdmissionClosed: with what the user can do.
        """
        if self._missing:
            self._missing = missing_gpus(self._paths, machine(), counts_idle=True)
        self._refuse(model_id)

    def _refuse(self, model_id: str) -> None:
        if self._missing or self._asks:
            raise AdmissionClosed(
                f"{model_id} is not loaded (503 service unavailable). {self.sentence}",
                retry_after_s=RETRY_S,
                model=model_id,
                needs_user=True,
            )

    def reduce(self, settings: Settings) -> Settings:
        """The settings that a load is given now."""
        return reduced(settings) if self._smaller else settings

    def look_at_gpus(self, model_id: str, machine: Machine) -> None:
        """Compares the GPUs that an engine can use, in the moment before it loads a model.

        Raises:
            AdmissionClosed: when one of last time is missing and the user has not said go on.
        """
        missing = missing_gpus(self._paths, machine)
        if missing and not self._is_gpu_waived:
            self._missing = missing
            if missing != self._told_missing:
                self._told_missing = missing
                self._loop.call_soon_threadsafe(self.tell)
            self._refuse(model_id)
        self._missing = ()
        remember_gpus(self._paths, machine)

    # What the user says.

    def allow_load(self) -> None:
        """The user loads a model by hand, and has so decided to go on."""
        if self._asks:
            self._kills.clear()
            self._asks = ""
        self._waive_gpu()

    def leave(self) -> bool:
        """Back to full size; whether settings were smaller before."""
        was_smaller = bool(self._smaller)
        if self.sentence:
            _log.info("nothing is held back any more: the user has said so")
        self._kills.clear()
        self._asks = self._smaller = ""
        self._waive_gpu()
        return was_smaller

    def _waive_gpu(self) -> None:
        if self._missing:
            self._missing = ()
            self._is_gpu_waived = True


def reduced(settings: Settings) -> Settings:
    """The quiet preset; figures that the user has set are halved, and nothing is forced. Pure."""
    model = settings.model
    changes: dict[str, object] = {
        "model.mood": "quiet",
        "memory.prompt_cache_bytes": 0,
        "memory.force_load": False,
    }
    if model.context_tokens > LEAST_CONTEXT_TOKENS:
        changes["model.context_tokens"] = max(LEAST_CONTEXT_TOKENS, model.context_tokens // 2)
    if model.slots:
        changes["model.slots"] = max(1, model.slots // 2)
    return settings.replace(changes)
