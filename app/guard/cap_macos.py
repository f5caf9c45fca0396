"""Memory caps on macOS: there is none that an ordinary program may set, and this says so. Pure.

RLIMIT_AS and RLIMIT_DATA are not enforced there, and the kernel's own per-process limits are for
Apple's programs. What holds a worker is the guard's watch; MLX is given its own limits by its engine.
"""

from app.core.lifecycle import CapKind
from app.guard.caps import Held

REASON = "macOS enforces no memory limit that an ordinary program can set"


def hold() -> Held:
    """What holds a worker."""
    return Held(CapKind.WATCH_ONLY, 0, swap_forbidden=False, tried=(f"kernel limit: {REASON}",))
