"""The one seam between the core loop and the GUI thread.

The core's events come in on the core loop and leave on the GUI thread, at most four times a second,
with the newest snapshot; commands go the other way through the handle, and their outcomes come back
here. What crosses is immutable. Built and used by `application.py` and the widgets.
"""

import concurrent.futures
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, Qt, QTimer, Signal, Slot

from app.core.errors import CoolheadError
from app.core.events import Event
from app.core.handle import Command, Handle, Snapshot

_log = logging.getLogger(__name__)

THROTTLE_MS = 250
"""Four flushes a second are as much as an eye can use."""

_POLL_MS = 1000
_EVENTS_KEPT = 1000
"""Between two flushes; older ones are dropped, the snapshot still says how things stand."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended: its result, or the error that stopped it."""

    result: object = None
    error: BaseException | None = None

    @property
    def title(self) -> str:
        return self.error.title if isinstance(self.error, CoolheadError) else CoolheadError.title

    @property
    def message(self) -> str:
        if isinstance(self.error, CoolheadError):
            return self.error.message
        return str(self.error or "")


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: Outcome
    on_done: Callable[[Outcome], None]


class Bridge(QObject):
    """Thread: lives on the GUI thread; `_take` and `_carry_back` alone run on others."""

    snapshot_changed = Signal(object)
    events_arrived = Signal(object)
    _crossed = Signal()

    def __init__(self, handle: Handle, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._handle = handle
        self._events: deque[Event] = deque(maxlen=_EVENTS_KEPT)
        self._answers: deque[_Answer] = deque()
        # Written by both threads, each a plain store: the core sets it after it has appended, the
        # GUI clears it before it drains, so that no event is left lying.
        self._is_pending = False
        self._is_closed = False
        self._shown: Snapshot | None = None
        self._flushed_s = 0.0
        self._watchers = 0
        self._later = QTimer(self)
        self._later.setSingleShot(True)
        self._later.timeout.connect(self._flush)
        # The core may put a snapshot without an event: live figures are pulled.
        self._poll = QTimer(self)
        self._poll.timeout.connect(self._pull)
        self._crossed.connect(self._on_crossed, Qt.ConnectionType.QueuedConnection)
        handle.subscribe(self._take)
        self._poll.start(_POLL_MS)

    @property
    def snapshot(self) -> Snapshot:
        return self._handle.snapshot

    def send(self, command: Command, on_done: Callable[[Outcome], None]) -> None:
        """Sends `command`; `on_done` is called on the GUI thread with how it ended."""
        try:
            future = self._handle.submit(command)
        except CoolheadError as error:  # the core loop is closed
            self._answers.append(_Answer(Outcome(error=error), on_done))
            self._crossed.emit()
            return
        future.add_done_callback(lambda done: self._carry_back(done, on_done))

    def ask(self, look: Callable[[], object], on_done: Callable[[Outcome], None]) -> None:
        """Runs a blocking `look` (disk, hardware) on a thread of its own; `on_done` as for `send`."""

        def run() -> None:
            done: concurrent.futures.Future[object] = concurrent.futures.Future()
            try:
                done.set_result(look())
            except CoolheadError as error:
                done.set_exception(error)
            except OSError as error:
                done.set_exception(CoolheadError(str(error)))
            finally:  # a fault of ours goes on to the thread's hook, and its asker must not wait
                if not done.done():
                    done.set_exception(CoolheadError("It could not be read; see the log."))
                self._carry_back(done, on_done)

        # A daemon: hardware that does not answer must not hold up the way out.
        threading.Thread(target=run, name="ui-look", daemon=True).start()

    def watch(self, is_watching: bool) -> None:
        """A visible window asks for live figures; each True is taken back by one False."""
        self._watchers = max(0, self._watchers + (1 if is_watching else -1))
        self._poll.setInterval(THROTTLE_MS if self._watchers else _POLL_MS)

    def close(self) -> None:
        """Nothing crosses from here on."""
        self._is_closed = True
        self._later.stop()
        self._poll.stop()

    def _take(self, happened: Event) -> None:
        """Thread: core loop."""
        if self._is_closed:
            return
        self._events.append(happened)
        if not self._is_pending:
            self._is_pending = True
            self._crossed.emit()

    def _carry_back(
        self,
        done: concurrent.futures.Future[object],
        on_done: Callable[[Outcome], None],
    ) -> None:
        """Thread: core loop, or that of `ask`."""
        if self._is_closed:
            return
        if done.cancelled():
            outcome = Outcome(error=concurrent.futures.CancelledError())
        else:
            error = done.exception()
            outcome = Outcome(error=error) if error else Outcome(done.result())
        self._answers.append(_Answer(outcome, on_done))
        self._crossed.emit()

    @Slot()
    def _on_crossed(self) -> None:
        while self._answers:
            answer = self._answers.popleft()
            answer.on_done(answer.outcome)
        if not self._is_pending or self._later.isActive():
            return
        wait_ms = THROTTLE_MS - int((time.monotonic() - self._flushed_s) * 1000)
        if wait_ms <= 0:
            self._flush()
        else:
            self._later.start(wait_ms)

    @Slot()
    def _flush(self) -> None:
        self._is_pending = False
        self._flushed_s = time.monotonic()
        happened: list[Event] = []
        while self._events:
            happened.append(self._events.popleft())
        self._pull()
        if happened:
            self.events_arrived.emit(tuple(happened))

    @Slot()
    def _pull(self) -> None:
        newest = self._handle.snapshot
        if newest is not self._shown:
            self._shown = newest
            self.snapshot_changed.emit(newest)
