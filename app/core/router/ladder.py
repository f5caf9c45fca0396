"""Carries out, on the app's side, what the guard decides: admission, idle models, the newest answer.

The guard kills by itself; everything else needs the core, which answers each verdict with `Done`, so
that a step that did not happen runs into the guard's deadline. Core loop only.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine

from app.core.backends.supervisor import Supervisor
from app.core.errors import CoolheadError
from app.core.events import EventBus, Notice, PressureChanged, StepTaken
from app.core.lifecycle import ExitCause, PressureLevel
from app.core.router.endpoint import Endpoint
from app.guard.protocol import Exited, Samples, Verdict

_log = logging.getLogger(__name__)

TELLING = {
    "close_admission": "New requests wait",
    "unload_idle": "An idle model was unloaded",
    "cancel_newest": "An answer was broken off",
    "killed": "A model was stopped",
    "ask_user": "Memory is short",
}


class Ladder:
    """Thread: core loop. Subscribes to the guard's messages by way of the supervisor.

    Args:
        on_kills: told how many workers were stopped for memory in the last ten minutes.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        endpoint: Endpoint,
        events: EventBus,
        on_kills: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._supervisor = supervisor
        self._endpoint = endpoint
        self._events = events
        self._on_kills = on_kills
        self._tasks: set[asyncio.Task[None]] = set()
        self.level = PressureLevel.NORMAL
        self.sentence = ""
        self.samples: Samples | None = None
        supervisor.subscribe(self._hear)

    def _hear(self, message: Exited | Samples | Verdict) -> None:
        if isinstance(message, Samples):
            self.samples = message
            self._set_level(message.level, self.sentence)
        elif isinstance(message, Verdict):
            self._carry_out(message)

    def guard_lost(self) -> None:
        """A new guard starts from nothing: what the old one closed is open again."""
        self.samples = None
        self._set_level(PressureLevel.NORMAL, "")

    def _set_level(self, level: PressureLevel, sentence: str) -> None:
        if level is PressureLevel.NORMAL:
            sentence = ""
        if level is self.level and sentence == self.sentence:
            return
        is_new = level is not self.level
        self.level, self.sentence = level, sentence
        self._endpoint.press(level, sentence)
        if is_new:
            self._events.publish(PressureChanged(level, sentence, at=time.time()))

    def _carry_out(self, verdict: Verdict) -> None:
        worker = next(
            (view for view in self._supervisor.workers() if view.worker_id == verdict.worker_id),
            None,
        )
        model_id = worker.model_id if worker else ""
        _log.warning("guard: %s %s: %s", verdict.step, model_id, verdict.sentence)
        # A worker near its own cap concerns its model alone, never the door of all.
        if not verdict.worker_id or verdict.level >= PressureLevel.CRITICAL:
            self._set_level(verdict.level, verdict.sentence)
        self._tell(verdict, model_id)
        if verdict.step == "unload_idle" and model_id:
            self._later(self._unload(verdict, model_id))
        elif verdict.step == "cancel_newest":
            self._cancel(verdict, model_id)
        else:
            self._done(verdict, ok=True)

    def _tell(self, verdict: Verdict, model_id: str) -> None:
        now = time.time()
        self._events.publish(
            StepTaken(verdict.step, verdict.cause, model_id, verdict.sentence, at=now)
        )
        title = TELLING.get(verdict.step)
        if title is None:
            return
        is_serious = verdict.step in {"killed", "ask_user"}
        cause = f"{verdict.step}:{verdict.cause.value if verdict.cause else ''}"
        self._events.publish(Notice(cause, title, verdict.sentence, is_serious, at=now))
        if verdict.step == "killed":
            self._on_kills(verdict.kills_in_window)

    def _cancel(self, verdict: Verdict, model_id: str) -> None:
        candidates = [model_id] if model_id else self._busy_models()
        is_done = any(self._endpoint.kill_newest(name, verdict.sentence) for name in candidates[:1])
        self._done(verdict, ok=is_done, note="" if is_done else "there was no answer to break off")

    def _busy_models(self) -> list[str]:
        """Models with requests, the one that was used last first."""
        busy = [view for view in self._supervisor.workers() if view.in_flight]
        busy.sort(key=lambda view: view.last_used_s, reverse=True)
        return [view.model_id for view in busy]

    async def _unload(self, verdict: Verdict, model_id: str) -> None:
        view = self._supervisor.worker(model_id)
        if view is None or view.in_flight:
            self._done(verdict, ok=False, note="it is answering a request")
            return
        try:
            await self._supervisor.unload(model_id, ExitCause.UNLOADED, verdict.sentence)
        except CoolheadError as error:
            self._done(verdict, ok=False, note=error.message)
        else:
            self._done(verdict, ok=True)

    def _done(self, verdict: Verdict, *, ok: bool, note: str = "") -> None:
        link = self._supervisor.guard.link
        if link is not None:
            link.send_done(verdict.verdict_id, ok=ok, note=note)

    def _later(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="guard's step")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
