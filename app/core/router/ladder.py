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
    "close_admission": "No new requests are taken",
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
        self._is_shut_for_all = False
        self.level = PressureLevel.NORMAL
        self.sentence = ""
        self._door = (self.level, self.sentence)
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
        self._endpoint.open_models()

    def _set_level(self, level: PressureLevel, sentence: str) -> None:
        if level is PressureLevel.NORMAL:
            sentence = ""
            self._is_shut_for_all = False
        # A worker near its own cap lifts the level too, but it concerns its model alone.
        is_for_all = self._is_shut_for_all or level >= PressureLevel.CRITICAL
        door = (level, sentence) if is_for_all else (PressureLevel.NORMAL, "")
        if door != self._door:
            self._door = door
            self._endpoint.press(*door)
        is_new = level is not self.level
        self.level, self.sentence = level, sentence
        if is_new:
            self._events.publish(PressureChanged(level, sentence, at=time.time()))

    def _carry_out(self, verdict: Verdict) -> None:
        model_id = self._model_of(verdict.worker_id)
        _log.warning("guard: %s %s: %s", verdict.step, model_id, verdict.sentence)
        if verdict.step == "close_admission" and not verdict.worker_id:
            self._is_shut_for_all = True
        if not verdict.worker_id or verdict.level >= PressureLevel.CRITICAL:
            self._set_level(verdict.level, verdict.sentence)
        self._tell(verdict, model_id)
        if verdict.step == "close_admission" and model_id:
            self._endpoint.close_model(model_id, verdict.sentence)
        elif verdict.step == "admit":
            self._endpoint.open_models()
        if verdict.step == "unload_idle" and model_id:
            self._later(self._unload(verdict, model_id))
        elif verdict.step == "cancel_newest":
            self._cancel(verdict, model_id)
        else:
            self._done(verdict, ok=True)

    def _model_of(self, worker_id: str) -> str:
        """Empty for the machine as a whole, as well as for a worker that is gone."""
        if not worker_id:
            return ""  # models that are not loaded have no worker either
        views = self._supervisor.workers()
        return next((view.model_id for view in views if view.worker_id == worker_id), "")

    def _tell(self, verdict: Verdict, model_id: str) -> None:
        now = time.time()
        self._events.publish(
            StepTaken(verdict.step, verdict.cause, model_id, verdict.sentence, at=now)
        )
        title = TELLING.get(verdict.step)
        if verdict.step == "close_admission" and model_id:
            title = f"{model_id} gets a fresh worker"
        if title is None:
            return
        is_serious = verdict.step in {"killed", "ask_user"}
        cause = f"{verdict.step}:{verdict.cause.value if verdict.cause else ''}"
        self._events.publish(Notice(cause, title, verdict.sentence, is_serious, at=now))
        if verdict.step == "killed":
            self._on_kills(verdict.kills_in_window)

    def _cancel(self, verdict: Verdict, model_id: str) -> None:
        """The newest answer; where there is none yet, those who wait for one and keep the model."""
        busy = [model_id] if model_id else self._busy_models()[:1]
        is_done = any(self._endpoint.kill_newest(name, verdict.sentence) for name in busy)
        if not is_done:
            named = [model_id] if model_id else [one.model_id for one in self._supervisor.workers()]
            told = [self._endpoint.send_away(name, verdict.sentence) for name in named]
            is_done = any(told)
        self._done(verdict, ok=is_done, note="" if is_done else "there was no answer to break off")

    def _busy_models(self) -> list[str]:
        """Models with requests, the one that was used last first."""
        busy = [view for view in self._supervisor.workers() if view.in_flight]
        busy.sort(key=lambda view: view.last_used_s, reverse=True)
        return [view.model_id for view in busy]

    async def _unload(self, verdict: Verdict, model_id: str) -> None:
        view = self._supervisor.worker(model_id)
        if view is None or view.in_flight or view.waiting:
            self._done(verdict, ok=False, note="it is answering a request")
            return
        self._endpoint.loaded_in_vain(model_id, self.sentence or verdict.sentence)
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
