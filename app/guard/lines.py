"""Every number that the guard decides by, with where it comes from. Pure; used by `policy` and caps.

The lines in percent of RAM are choices for desktops; the rates and delays were measured on Linux.
Only tests and benchmarks change them, through `GuardOptions`.
"""

import msgspec

from app.core.lines import CLEAR_RATIO, ELEVATED_BYTES, ELEVATED_PERCENT, share

MIB = 1024 * 1024
GIB = 1024 * MIB


class Lines(msgspec.Struct, frozen=True):
    """Where one pressure level ends and the next begins.

    A line in bytes and one in percent of RAM mean the larger of the two.
    """

    elevated_bytes: int = ELEVATED_BYTES
    elevated_percent: float = ELEVATED_PERCENT
    critical_bytes: int = 768 * MIB
    critical_percent: float = 6.0
    kill_bytes: int = 384 * MIB
    kill_percent: float = 3.0

    near_cap_ratio: float = 0.9
    """Of the cap; but a worker at its plan is never near its cap, see `policy.near_cap_bytes`."""
    lookahead_margin_s: float = 0.015
    """Added to the period when the slope is drawn out: from deciding to the signal's arrival."""
    clear_ratio: float = CLEAR_RATIO
    """How far a signal must be off its line again before the level falls."""
    clear_s: float = 3.0

    swap_elevated_bytes: int = 1
    swap_critical_bytes: int = 4 * MIB
    """A few cold pages of an idle worker are no reason to cancel an answer; more of them are."""

    psi_some_s: float = 0.050
    psi_some_percent: float = 20.0
    """PSI counts only while less than this is available: pressure without scarcity is noise."""
    psi_full_s: float = 0.100
    psi_full_percent: float = 12.0
    psi_window_s: float = 1.0
    psi_ignore_after_kill_s: float = 2.0

    refault_elevated_bytes_per_s: float = 50.0 * MIB
    refault_elevated_s: float = 0.3
    refault_critical_bytes_per_s: float = 200.0 * MIB
    refault_critical_s: float = 1.0
    refault_share: float = 0.5
    """Part of the machine's refaults that a worker must have read itself to be the culprit."""

    gpu_shared_bytes: int = 256 * MIB
    """Growth of shared GPU memory over the worker's own baseline that means spilling."""
    gpu_full_bytes: int = 512 * MIB
    """Spilling needs a card that is full to within this."""
    gpu_samples: int = 2

    cancel_deadline_s: float = 0.5
    settle_s: float = 0.5
    """How long freed memory may take to be seen back."""
    unload_deadline_s: float = 2.0
    cool_down_s: float = 10.0
    cool_down_clear_s: float = 3.0
    kills_window_s: float = 600.0
    kills_before_asking: int = 3

    gap_s: float = 1.0
    """A sample that is later than this was late because the machine, or we, slept."""
    period_none_s: float = 1.0
    period_idle_s: float = 0.25
    period_busy_s: float = 0.05
    period_close_s: float = 0.02
    close_s: float = 0.5
    fastest_fill_bytes_per_s: float = 1.0 * GIB


def reserve_bytes(lines: Lines, total_bytes: int) -> int:
    """What is kept for the desktop: enough for the level to fall from ELEVATED."""
    elevated = share(lines.elevated_bytes, lines.elevated_percent, total_bytes)
    return int(elevated * lines.clear_ratio)
