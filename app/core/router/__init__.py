"""The endpoint: from a socket to a decision, a slot, and an answer.

As a library: `from app.core.router import Router`.
"""

from app.core.router.decision import Decision
from app.core.router.features import RequestFeatures
from app.core.router.router import Router

__all__ = ["Decision", "RequestFeatures", "Router"]
