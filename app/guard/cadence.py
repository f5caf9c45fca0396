"""How long the watchdog sleeps between two samples: short when memory could run out soon. Pure."""

from app.core.lines import share
from app.guard.lines import Lines
from app.guard.readings import Reading

STIRRING_BYTES_PER_S = 16 * 1024 * 1024
"""An idle worker that grows by this is not idle."""


def period_s(lines: Lines, reading: Reading, fastest_slope_bytes_per_s: float) -> float:
    """The time until the next sample.

    Args:
        lines: the periods and the fastest fill rate that is assumed of anyone.
        reading: the last sample.
        fastest_slope_bytes_per_s: of all workers, as last seen.
    """
    alive = [worker for worker in reading.workers if not worker.is_ending]
    if not alive:
        return lines.period_none_s
    if all(worker.is_idle for worker in alive) and fastest_slope_bytes_per_s < STIRRING_BYTES_PER_S:
        return lines.period_idle_s
    kill_line = share(lines.kill_bytes, lines.kill_percent, reading.total_bytes)
    headroom = min(
        reading.available_bytes - kill_line,
        *(worker.cap_own_bytes - worker.own_bytes for worker in alive if worker.cap_own_bytes),
        reading.available_bytes,
    )
    rate = max(fastest_slope_bytes_per_s, lines.fastest_fill_bytes_per_s)
    return lines.period_close_s if headroom / rate < lines.close_s else lines.period_busy_s
