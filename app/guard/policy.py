"""Decides what to do about memory, from readings alone. Pure: no clock, no files, no signals.

Called by the watchdog with every sample, on the guard's only thread. Each step, in this order:

1. A worker that reaches its cap, or will before the next sample, is stopped, whatever else goes on.
2. The level rises with the highest signal at once, and falls only when all are well off their lines.
3. ELEVATED closes admission, drops prompt caches, and unloads idle workers while memory is short.
4. CRITICAL cancels the newest answer; what does not end within the deadline is stopped.
5. Below the last line the machine's victim is stopped, one at a time, and only if that helps;
   otherwise the program that took the memory is named.
6. After a kill: cool-down, until memory has been seen back for a while.
7. The third kill for memory in ten minutes asks the user.
"""

import collections
from dataclasses import dataclass

from msgspec.structs import replace

from app.core.lifecycle import ExitCause, PressureLevel
from app.guard import sentences
from app.guard.lines import Lines, reserve_bytes
from app.guard.readings import Action, Reading, WorkerReading
from app.guard.signals import Look, Signal, Signals
from app.guard.victim import choose_victim, least_recently_used

UNLOAD_AGAIN_S = 5.0
"""An unload that was asked for and did not happen is asked for again after this."""
_FOR_ALL = ""


@dataclass(slots=True)
class _Cancel:
    """A cancel, or the going of an idle worker, that was asked for.

    `settled_s` is set by the app's answer.
    """

    deadline_s: float
    was_busy: bool
    settled_s: float | None = None


class Policy:
    """A state machine with two inputs, `step` and `done`, and no other writer."""

    def __init__(self, lines: Lines, *, predict: bool = True) -> None:
        self._lines = lines
        self._signals = Signals(lines, predict=predict)
        self._base = PressureLevel.NORMAL
        self._last_s: float | None = None
        self._clear_since_s: float | None = None
        self._off_critical_since_s: float | None = None
        self._closed: set[str] = set()
        self._owes_admit = False
        self._unloading: dict[str, float] = {}
        self._cancel: _Cancel | None = None
        self._kill_times: collections.deque[float] = collections.deque()
        self._settled_s = float("-inf")
        self._is_ending = False
        self._cooling_since_s: float | None = None
        self._plenty_since_s: float | None = None
        self._has_blamed = False

    @property
    def level(self) -> PressureLevel:
        """What the app shows. A cool-down hides everything below CRITICAL."""
        if self._is_ending:
            return PressureLevel.KILL
        if self._cooling_since_s is not None and self._base < PressureLevel.CRITICAL:
            return PressureLevel.COOL_DOWN
        return self._base

    @property
    def kills_in_window(self) -> int:
        return len(self._kill_times)

    def slope(self, worker_id: str) -> float:
        """Bytes a second that a worker grew by, as last seen."""
        return self._signals.slope(worker_id)

    def done(self, step: str, worker_id: str, at_s: float, *, ok: bool) -> None:
        """The app's answer to a step; a step that failed runs into its deadline."""
        if not ok:
            return
        if step == "cancel_newest" and self._cancel is not None:
            self._cancel.settled_s = at_s + self._lines.settle_s
        elif step == "unload_idle":
            self._unloading[worker_id] = at_s + UNLOAD_AGAIN_S

    def note_still(self, at_s: float) -> None:
        """A sample that showed no change since the last step; nothing is decided on it."""
        self._last_s = at_s
        self._signals.note_still(at_s)

    def note_end(self, cause: ExitCause, worker_id: str, at_s: float) -> list[Action]:
        """Counts an end for want of memory, by us or by the kernel; what the third one asks for."""
        self._kill_times.append(at_s)
        if self.kills_in_window < self._lines.kills_before_asking:
            return []
        asked = sentences.asked(self.kills_in_window, self._lines.kills_window_s)
        return [Action("ask_user", PressureLevel.KILL, asked, cause, worker_id)]

    def step(self, reading: Reading) -> list[Action]:
        """What to do now, in order."""
        self._note_time(reading)
        look = self._signals.look(reading)
        actions: list[Action] = []
        ending_before = any(worker.is_ending for worker in reading.workers)
        self._follow_ending(reading, ending=ending_before)
        self._stop_over_cap(look, reading, actions)
        self._set_level(look, reading, actions)
        if self._base >= PressureLevel.ELEVATED:
            self._close(look, actions)
            self._unload(look, reading, actions)
        may_kill = not ending_before and not any(one.step == "kill" for one in actions)
        if may_kill and reading.at_s >= self._settled_s:
            self._relieve(look, reading, actions)
        return actions

    # -- time -------------------------------------------------------------------------------------

    def _note_time(self, reading: Reading) -> None:
        """Deadlines do not run while the machine, or we, were asleep."""
        gap_s = 0.0
        if self._last_s is not None:
            gap_s = reading.at_s - self._last_s - reading.period_s
        self._last_s = reading.at_s
        while self._kill_times and self._kill_times[0] < reading.at_s - self._lines.kills_window_s:
            self._kill_times.popleft()
        if gap_s <= self._lines.gap_s:
            return
        self._signals.forget_windows()
        self._unloading = {name: until + gap_s for name, until in self._unloading.items()}
        if self._cancel is not None:
            self._cancel.deadline_s += gap_s
        self._clear_since_s = self._off_critical_since_s = self._plenty_since_s = None

    def _follow_ending(self, reading: Reading, *, ending: bool) -> None:
        lines, at_s = self._lines, reading.at_s
        if self._is_ending and not ending:
            self._settled_s = at_s + lines.settle_s
            self._signals.ignore_psi(at_s + lines.psi_ignore_after_kill_s)
            self._cooling_since_s, self._plenty_since_s = at_s, None
            self._owes_admit = True
        self._is_ending = ending
        if self._cooling_since_s is None:
            return
        has_plenty = reading.available_bytes > reserve_bytes(lines, reading.total_bytes)
        self._plenty_since_s = _since(self._plenty_since_s, has_plenty, at_s)
        is_over = _has_lasted(self._cooling_since_s, at_s, lines.cool_down_s)
        if is_over and _has_lasted(self._plenty_since_s, at_s, lines.cool_down_clear_s):
            self._cooling_since_s = None

    # -- levels -----------------------------------------------------------------------------------

    def _set_level(self, look: Look, reading: Reading, actions: list[Action]) -> None:
        at_s, clear_s = reading.at_s, self._lines.clear_s
        self._off_critical_since_s = _since(self._off_critical_since_s, look.is_off_critical, at_s)
        self._clear_since_s = _since(self._clear_since_s, look.is_clear, at_s)
        self._base = max(self._base, min(look.level, PressureLevel.CRITICAL))
        is_critical = self._base is PressureLevel.CRITICAL
        if is_critical and _has_lasted(self._off_critical_since_s, at_s, clear_s):
            self._base = PressureLevel.ELEVATED
        if self._base < PressureLevel.CRITICAL:
            self._cancel = None
        may_fall = self._base is PressureLevel.NORMAL or (
            self._base is PressureLevel.ELEVATED and _has_lasted(self._clear_since_s, at_s, clear_s)
        )
        if not may_fall:
            return
        self._base = PressureLevel.NORMAL
        self._has_blamed = False
        self._unloading.clear()
        if self._owes_admit and self._cooling_since_s is None and not self._is_ending:
            self._owes_admit = False
            self._closed.clear()
            actions.append(Action("admit", self.level, sentences.relieved(reading)))

    def _close(self, look: Look, actions: list[Action]) -> None:
        """Admission for all where the machine suffers, else for the worker that is near its cap."""
        for signal in look.signals:
            scope = signal.worker_id if signal.cause is ExitCause.CAP_EXCEEDED else _FOR_ALL
            if scope in self._closed or _FOR_ALL in self._closed:
                continue
            self._closed.add(scope)
            self._owes_admit = True
            close = Action(
                "close_admission",
                self.level,
                signal.sentence,
                signal.cause,
                scope,
                signal.needed_bytes,
            )
            actions += [close, replace(close, step="drop_caches")]

    def _unload(self, look: Look, reading: Reading, actions: list[Action]) -> None:
        for signal in look.signals:
            if signal.cause is ExitCause.CAP_EXCEEDED:
                continue
            workers = reading.workers
            if signal.cause is ExitCause.GPU_MEMORY:
                workers = tuple(one for one in workers if one.worker_id == signal.worker_id)
            for worker in least_recently_used(workers, signal.needed_bytes):
                if reading.at_s < self._unloading.get(worker.worker_id, float("-inf")):
                    continue
                deadline_s = self._lines.unload_deadline_s
                self._unloading[worker.worker_id] = reading.at_s + UNLOAD_AGAIN_S
                actions.append(
                    Action(
                        "unload_idle",
                        self.level,
                        sentences.unload(worker, signal.sentence),
                        signal.cause,
                        worker.worker_id,
                        signal.needed_bytes,
                        deadline_s,
                    )
                )

    # -- cancelling and stopping ------------------------------------------------------------------

    def _stop_over_cap(self, look: Look, reading: Reading, actions: list[Action]) -> None:
        for signal in look.signals:
            if signal.level is PressureLevel.KILL and signal.worker_id:
                self._stop(
                    signal, signal.cause, signal.sentence, signal.worker_id, reading, actions
                )

    def _relieve(self, look: Look, reading: Reading, actions: list[Action]) -> None:
        critical = [one for one in look.signals if one.level >= PressureLevel.CRITICAL]
        signal = max(critical, key=lambda one: one.level, default=None)
        if signal is None:
            return
        if signal.level is PressureLevel.KILL:
            self._stop_victim(signal, reading, actions)
            return
        if self._cancel is None:
            self._ask_cancel(signal, reading, actions)
            return
        if self._cancel.settled_s is not None:
            # It was cancelled and is still not enough: the next one, if there is one.
            if reading.at_s >= self._cancel.settled_s:
                self._cancel = None
                self._ask_cancel(signal, reading, actions)
            return
        if reading.at_s >= self._cancel.deadline_s:
            was_busy, self._cancel = self._cancel.was_busy, None
            self._stop_victim(signal, reading, actions, was_busy=was_busy)

    def _ask_cancel(self, signal: Signal, reading: Reading, actions: list[Action]) -> None:
        concerned = [
            worker for worker in reading.workers if signal.worker_id in {_FOR_ALL, worker.worker_id}
        ]
        if self._victim(signal, reading) is None:
            # No end of ours would help, so no answer is given up either.
            self._blame(signal, reading, actions)
            return
        lines = self._lines
        if all(worker.is_idle for worker in concerned):
            # Nothing to cancel: `_unload` has asked them to go, and they have this long.
            self._cancel = _Cancel(reading.at_s + lines.unload_deadline_s, was_busy=False)
            return
        self._cancel = _Cancel(reading.at_s + lines.cancel_deadline_s, was_busy=True)
        actions.append(
            Action(
                "cancel_newest",
                self.level,
                signal.sentence,
                signal.cause,
                signal.worker_id,
                signal.needed_bytes,
                lines.cancel_deadline_s,
            )
        )

    def _victim(self, signal: Signal, reading: Reading) -> WorkerReading | None:
        if signal.worker_id:
            return next(one for one in reading.workers if one.worker_id == signal.worker_id)
        return choose_victim(reading.workers, reading.available_bytes, signal.line_bytes)

    def _blame(self, signal: Signal, reading: Reading, actions: list[Action]) -> None:
        """Once an episode: it is not us, and who it is as far as that is known."""
        if reading.workers and not self._has_blamed:
            self._has_blamed = True
            sentence = sentences.not_ours(reading, signal.line_bytes)
            actions.append(Action("ask_user", self.level, sentence, signal.cause))

    def _stop_victim(
        self,
        signal: Signal,
        reading: Reading,
        actions: list[Action],
        *,
        was_busy: bool = False,
    ) -> None:
        """`was_busy`: it was given the time to end its answer, and did not."""
        victim = self._victim(signal, reading)
        if victim is None:
            self._blame(signal, reading, actions)
            return
        cause, why = signal.cause, signal.sentence
        if not signal.worker_id:
            why = f"{why} {sentences.gives_back(victim)}"
        if was_busy:
            sentence = sentences.not_cancelled(victim, why, self._lines.cancel_deadline_s)
            # What a worker does itself is the better name; the machine's need is not its doing.
            cause = cause if signal.worker_id else ExitCause.CANCEL_TIMED_OUT
        else:
            sentence = sentences.stopped(victim, why)
        self._stop(signal, cause, sentence, victim.worker_id, reading, actions)

    def _stop(
        self,
        signal: Signal,
        cause: ExitCause,
        sentence: str,
        worker_id: str,
        reading: Reading,
        actions: list[Action],
    ) -> None:
        self._is_ending = True
        self._cancel = None
        kill = Action("kill", PressureLevel.KILL, sentence, cause, worker_id)
        actions.append(replace(kill, line_bytes=signal.line_bytes))
        actions.extend(self.note_end(cause, worker_id, reading.at_s))


def _since(since_s: float | None, holds: bool, at_s: float) -> float | None:
    """When a fact began to hold, None while it does not."""
    if not holds:
        return None
    return at_s if since_s is None else since_s


def _has_lasted(since_s: float | None, at_s: float, long_s: float) -> bool:
    return since_s is not None and at_s - since_s >= long_s
