"""Does it fit, and what would fit instead: the one door to `judge.py`, `limits.py`, `propose.py`."""

from app.core.models.choice import Proposal
from app.core.models.judge import RAM, Fit, judge, judge_all
from app.core.models.limits import GpuLimit, Limits, limits_from
from app.core.models.propose import propose

__all__ = [
    "RAM",
    "Fit",
    "GpuLimit",
    "Limits",
    "Proposal",
    "judge",
    "judge_all",
    "limits_from",
    "propose",
]
