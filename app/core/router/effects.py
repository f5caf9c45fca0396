"""What the scheduler has done, and who does it. Pure.

The scheduler decides and asks for these; `Admissions` carries them out, tests write them down.
"""

from typing import Protocol

from app.core.router.tickets import Refusal, Ticket


class Effects(Protocol):
    """Carries decisions out. None of these may call back into the scheduler before it returns."""

    def start_load(self, model_id: str) -> None:
        """Answered later by `load_finished` or `load_failed`."""
        ...

    def stop_load(self, model_id: str, reason: str) -> None:
        """Ends a load that is no use any more; `load_failed` follows, or `load_finished` was quicker."""
        ...

    def unload(self, model_id: str, reason: str) -> None:
        """Answered later by `unloaded`."""
        ...

    def grant(self, ticket: Ticket) -> None:
        """Answered later by `release`."""
        ...

    def refuse(self, ticket: Ticket, refusal: Refusal) -> None: ...

    def give_up(self, model_id: str, error: Exception) -> None:
        """The model is not loaded, for this reason; its tickets are refused one by one."""
        ...
