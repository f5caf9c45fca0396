"""Notices that the GUI thread does not come round, and logs where it hangs.

A stalled window never holds up requests (they are the core loop's), but its cause must be found.
`application.py` owns one.
"""

import logging
import sys
import threading
import time
import traceback

from PySide6.QtCore import QObject, QTimer, Slot

_log = logging.getLogger(__name__)

STALLED_S = 2.0
_BEAT_MS = 500


class StallWatch(QObject):
    """Thread: beats on the GUI thread, which writes `_beat_s`; a thread of its own reads it."""

    def __init__(self, parent: QObject | None = None, stalled_s: float = STALLED_S) -> None:
        super().__init__(parent)
        self._stalled_s = stalled_s
        self._beat_s = time.monotonic()
        self._is_over = threading.Event()
        self._watched = threading.get_ident()
        self._timer = QTimer(self)
        self._timer.timeout.connect(self._beat)
        self._timer.start(_BEAT_MS)
        self._thread = threading.Thread(target=self._watch, name="ui-stall-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._timer.stop()
        self._is_over.set()
        self._thread.join()

    @Slot()
    def _beat(self) -> None:
        # Also lets Python run its signal handlers, which wait while Qt's own loop has the thread.
        self._beat_s = time.monotonic()

    def _watch(self) -> None:
        """Thread: ui-stall-watch."""
        reported_s = 0.0
        while not self._is_over.wait(self._stalled_s / 4):
            beat_s = self._beat_s
            late_s = time.monotonic() - beat_s
            if late_s > self._stalled_s and reported_s != beat_s:
                reported_s = beat_s
                _log.warning("the GUI thread is stalled (%.1f s) in:\n%s", late_s, self._where())
            elif reported_s and reported_s != beat_s:
                _log.warning(
                    "the GUI thread goes on; it was stalled for %.1f s", beat_s - reported_s
                )
                reported_s = 0.0

    def _where(self) -> str:
        frame = sys._current_frames().get(self._watched)  # noqa: SLF001 - the documented way
        return "".join(traceback.format_stack(frame, 12)) if frame else "(no Python code)"
