"""How often the user is spoken to: at most one notice for each cause in 5 minutes. Pure.

`tray.py` asks before it shows a message; what is held back still stands in the activity list.
"""

INTERVAL_S = 300.0
"""Shown at most once in this time for each cause."""

_CAUSES_KEPT = 256


class NoticeThrottle:
    """Remembers when each cause was last shown. Thread: GUI."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._shown_s: dict[str, float] = {}

    def may_show(self, cause: str, now_s: float) -> bool:
        """Whether a notice of this cause is shown at `now_s` (monotonic); if so, it counts as shown."""
        last_s = self._shown_s.get(cause)
        if last_s is not None and now_s - last_s < self._interval_s:
            return False
        if len(self._shown_s) >= _CAUSES_KEPT:
            oldest = min(self._shown_s, key=self._shown_s.__getitem__)
            del self._shown_s[oldest]
        self._shown_s[cause] = now_s
        return True
