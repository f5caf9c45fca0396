"""Decides which request gets which slot, and which model is loaded or unloaded for it. Pure.

The dispatcher calls it on the core loop, with the time, and carries its decisions out (`Effects`).

On a new ticket, in this order:
 1. The door is closed (paused, stopping, memory pressure, cool-down), or the model's: refused.
 2. The model is ready and a slot is free that nobody senior waits for: granted.
 3. Every slot is taken and the policy is `reject`, or `degrade` and there is a fallback: refused.
 4. The queue is full: refused, with the time after which it is worth to come back.
 5. Otherwise it waits.
Whenever anything has changed, in this order:
 6. Tickets that have waited too long are refused; so are those that the door has kept from their slots
    for too long, and a load that nobody waits for any more is then given up.
 7. Free slots go to the waiting, senior first (`Ticket.rank_s`), while the slots' KV cells hold them.
 8. A draining model without requests is unloaded; one that drains for nobody any more is ready again.
 9. One model is loaded at a time, for the most senior ticket; all of a model's tickets join its load.
10. A load that lacks memory makes room by the bytes it lacks: idle models first, least recently used;
    then one that is busy is drained, once nobody waits for it or the patience is over; never a pinned
    one; never is a model unloaded that answers a request. What cannot make room is refused.
11. A model that nobody has used for its idle timeout is unloaded.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.router.decision import Overload
from app.core.router.effects import Effects
from app.core.router.places import (
    RAM,
    USUAL_HOLD_S,
    ModelRecord,
    ModelView,
    Place,
    bytes_on,
    is_moving,
    victims_for,
    view_of,
)
from app.core.router.tickets import OPEN, Admission, Closing, Refusal, RefusalKind, Ticket

__all__ = ["RAM", "Effects", "ModelView", "Place", "Policy", "Scheduler"]

MIN_RETRY_S = 1
MAX_RETRY_S = 60  # claude gives up at once on more


@dataclass(frozen=True, slots=True)
class Policy:
    """The user's will, as far as it is about waiting. Times in seconds.

    Attributes:
        swap_patience_s: how long the queue of a loaded model may keep out another model.
    """

    max_queue_size: int = 32
    overload: Overload = "queue"
    idle_timeout_s: float = 900.0
    swap_patience_s: float = 10.0
    pinned: frozenset[str] = frozenset()


class Scheduler:
    """Thread: the core loop, its one writer. `now` is always monotonic seconds."""

    def __init__(self, effects: Effects, policy: Policy) -> None:
        self._effects = effects
        self._policy = policy
        self._admission = OPEN
        self._shut: Closing | None = None  # the door for all, since it grants nothing
        self._models: dict[str, ModelRecord] = {}

    # What has happened.

    def submit(self, ticket: Ticket, now: float) -> None:
        """A request wants a slot; it is granted, refused or kept."""
        if self.take(ticket, now):
            self._effects.grant(ticket)
            return
        model = self._model(ticket.model_id)
        refusal = self._objection(model, ticket)
        if refusal is not None:
            self._effects.refuse(ticket, refusal)
            return
        at = next(
            (i for i, other in enumerate(model.waiting) if other.rank_s > ticket.rank_s), None
        )
        model.waiting.insert(len(model.waiting) if at is None else at, ticket)
        self._pump(now)

    def take(self, ticket: Ticket, now: float) -> bool:
        """Takes a slot that is free at once and that nobody senior waits for; whether there is one.

        The usual case of `submit`, with nobody to be told: a ticket that took one is granted.
        """
        model = self._models.get(ticket.model_id)
        admission = self._admission
        if (
            model is None
            or model.place is not Place.READY
            or model.waiting
            or not (admission.takes_new and admission.grants)
            or ticket.model_id in admission.closed_models
            or not self._has_room(model, ticket)
        ):
            return False
        self._hold(model, ticket, now)
        return True

    def withdraw(self, ticket: Ticket, now: float) -> None:
        """The client of a waiting ticket has left. One that was granted is released instead."""
        model = self._model(ticket.model_id)
        if ticket in model.waiting:
            model.waiting.remove(ticket)
            self._pump(now)

    def release(self, ticket: Ticket, now: float) -> None:
        """The slot of a granted ticket is idle again, or its worker has ended."""
        model = self._model(ticket.model_id)
        number = ticket.ticket_id
        granted_s = model.granted_at.pop(number, now)
        if model.held.pop(number, None) is not None:
            weight = 0.2 if model.is_measured else 1.0
            model.is_measured = True
            model.hold_s += weight * (now - granted_s - model.hold_s)
            model.used_s = now
        else:
            model.stale.pop(number, None)
        for other in self._models.values():
            # Else nobody waits and nothing moves: the usual case, which costs next to nothing.
            if other.waiting or other.is_wanted or other.place is Place.DRAINING:
                self._pump(now)
                return

    def load_finished(
        self,
        model_id: str,
        slots: int,
        bytes_held: Mapping[str, int],
        now: float,
        kv_tokens: int = 0,
    ) -> None:
        """A worker is ready, whoever asked for it.

        Unloading it would give `bytes_held` back, by device; `kv_tokens` are the KV cells that all
        slots share, 0 where each slot has its own.
        """
        model = self._model(model_id)
        self._retire(model)
        model.place = Place.READY
        model.slots = max(1, slots)
        model.kv_tokens = kv_tokens
        model.bytes_held = bytes_held
        model.ready_s = model.used_s = now
        model.is_wanted = False
        model.lacking_bytes = 0
        model.lacking_error = None
        model.drains_for = None
        self._pump(now)

    def load_failed(
        self,
        model_id: str,
        error: Exception,
        now: float,
        lacking_bytes: int = 0,
        device: str = RAM,
    ) -> None:
        """A load ended without a worker; with `lacking_bytes` it was for want of memory alone."""
        model = self._model(model_id)
        model.place = Place.UNLOADED
        if lacking_bytes > 0:
            model.lacking_bytes = lacking_bytes
            model.lacking_device = device
            model.lacking_error = error
        else:
            self._give_up(model, error)
        self._pump(now)

    def unloaded(self, model_id: str, now: float) -> None:
        """The worker has ended, by our will or not. Its requests are released one by one."""
        model = self._model(model_id)
        if model.place is Place.LOADING:
            return  # `load_failed` comes for it
        self._retire(model)
        model.place = Place.UNLOADED
        model.bytes_held = {}
        model.drains_for = None
        for other in self._models.values():
            other.lacking_bytes = 0  # there is more room now; a new try tells how much
        self._pump(now)

    def ending(self, model_id: str, now: float) -> None:
        """Somebody else ends the worker; `unloaded` follows once its process is gone."""
        model = self._model(model_id)
        if model.place in {Place.READY, Place.DRAINING}:
            self._retire(model)
            model.place = Place.UNLOADING
            model.drains_for = None
            self._pump(now)

    # What is wanted.

    def want(self, model_id: str, now: float) -> None:
        """Load without a request."""
        model = self._model(model_id)
        model.is_wanted = model.place is not Place.READY
        self._pump(now)

    def drain(self, model_id: str, now: float, reason: str = "unloaded by you") -> None:
        """Unload once its requests are answered; this outdoes a pin."""
        model = self._model(model_id)
        model.is_wanted = False
        if model.place in {Place.READY, Place.DRAINING}:
            model.place = Place.DRAINING
            model.drains_for = ""
            model.drain_reason = reason
        self._pump(now)

    def set_admission(self, admission: Admission, now: float) -> None:
        """The gate has opened or closed."""
        self._admission = admission
        if admission.grants:
            self._shut = None
        else:
            since_s = self._shut.since_s if self._shut is not None else now
            self._shut = Closing(
                admission.sentence, admission.retry_after_s, since_s, admission.patience_s
            )
        if admission.empties_queue:
            refusal = Refusal(RefusalKind.CLOSED, admission.sentence, admission.retry_after_s)
            for model in self._models.values():
                self._refuse_all(model, refusal)
        self._pump(now)

    def send_away(self, model_id: str, sentence: str, retry_after_s: int) -> bool:
        """Refuses all who wait for a model, and ends a load that was for them; whether any waited."""
        model = self._model(model_id)
        if not model.waiting:
            return False
        self._refuse_all(model, Refusal(RefusalKind.CLOSED, sentence, retry_after_s))
        if model.place is Place.LOADING and not model.is_wanted:
            self._effects.stop_load(model_id, sentence)
        return True

    def set_policy(self, policy: Policy, now: float) -> None:
        self._policy = policy
        self._pump(now)

    def tick(self, now: float) -> None:
        """Time has passed; call it once a second or so."""
        self._unload_idle(now)
        self._pump(now)

    # What is so.

    def view(self, model_id: str) -> ModelView:
        return view_of(self._models.get(model_id) or ModelRecord(model_id))

    def views(self) -> tuple[ModelView, ...]:
        return tuple(view_of(model) for model in self._models.values())

    def waiting(self, model_id: str) -> int:
        """How many tickets wait for a model."""
        model = self._models.get(model_id)
        return len(model.waiting) if model is not None else 0

    def is_unused(self, model_id: str) -> bool:
        """Whether the model's worker has answered nothing yet."""
        model = self._models.get(model_id)
        return model is not None and model.used_s <= model.ready_s and not model.held

    def is_ready(self, model_id: str) -> bool:
        """Whether requests of this model are answered without a load."""
        model = self._models.get(model_id)
        return model is not None and model.place is Place.READY

    @property
    def in_flight(self) -> int:
        """Requests that hold a slot, those of ended workers included."""
        return sum(len(model.held) + len(model.stale) for model in self._models.values())

    @property
    def queued(self) -> int:
        return sum(len(model.waiting) for model in self._models.values())

    def retry_after_s(self, model_id: str) -> int:
        """When a slot is likely to be free for one more, in whole seconds from 1 to 60."""
        model = self._model(model_id)
        return _bounded((len(model.waiting) + 1) / model.slots * model.hold_s)

    # How it is decided.

    def _objection(self, model: ModelRecord, ticket: Ticket) -> Refusal | None:
        if not self._admission.takes_new:  # 1
            admission = self._admission
            return Refusal(RefusalKind.CLOSED, admission.sentence, admission.retry_after_s)
        closing = self._admission.closed_models.get(model.model_id)
        if closing is not None:
            retry_s = closing.retry_s(ticket.enqueued_s)
            return Refusal(RefusalKind.CLOSED, closing.sentence, retry_s)
        if model.place is Place.READY and not model.waiting and self._has_room(model, ticket):  # 2
            return None
        is_full = model.place is Place.READY
        overload = ticket.overload or self._policy.overload
        if is_full and (
            overload == "reject" or (overload == "degrade" and ticket.may_degrade)
        ):  # 3
            sentence = f"All {model.slots} slots of {model.model_id} are taken."
            return Refusal(RefusalKind.OVERLOADED, sentence, self.retry_after_s(model.model_id))
        # A model that is not there yet will take as many as it has slots without anyone queueing.
        backlog = sum(
            max(0, len(m.waiting) - (0 if m.place is Place.READY else m.slots))
            for m in self._models.values()
        )
        joins_load = not is_full and len(model.waiting) < model.slots
        if backlog >= self._policy.max_queue_size and not joins_load:  # 4
            sentence = (
                f"{backlog} requests are waiting already and the queue takes "
                f"{self._policy.max_queue_size}."
            )
            return Refusal(RefusalKind.OVERLOADED, sentence, self.retry_after_s(model.model_id))
        return None  # 5

    def _pump(self, now: float) -> None:
        for model in self._models.values():  # 6
            self._expire(model, now)
            self._send_away(model, now)
        for model in self._models.values():  # 7
            self._grant(model, now)
        for model in self._models.values():  # 8
            self._settle_drain(model, now)
        if self._admission.loads:  # 9
            self._load_next(now)

    def _expire(self, model: ModelRecord, now: float) -> None:
        for ticket in [ticket for ticket in model.waiting if ticket.deadline_s <= now]:
            model.waiting.remove(ticket)
            sentence = f"The request waited {now - ticket.enqueued_s:.0f} s for {model.model_id}."
            refusal = Refusal(
                RefusalKind.WAITED_TOO_LONG, sentence, self.retry_after_s(model.model_id)
            )
            self._effects.refuse(ticket, refusal)

    def _send_away(self, model: ModelRecord, now: float) -> None:
        """Ends the waiting for a door that stays shut, and the load that was for it alone."""
        if not model.waiting:
            return
        for shut in (self._shut, self._admission.closed_models.get(model.model_id)):
            if shut is None or now - shut.since_s < shut.patience_s:
                continue
            self.send_away(model.model_id, shut.sentence, shut.retry_after_s)
            return

    def _grant(self, model: ModelRecord, now: float) -> None:
        if not self._admission.grants or model.model_id in self._admission.closed_models:
            return
        while model.place is Place.READY and model.waiting:
            ticket = model.waiting[0]
            if not self._has_room(model, ticket):
                return
            model.waiting.pop(0)
            self._hold(model, ticket, now)
            self._effects.grant(ticket)

    @staticmethod
    def _hold(model: ModelRecord, ticket: Ticket, now: float) -> None:
        model.held[ticket.ticket_id] = ticket
        model.granted_at[ticket.ticket_id] = now
        model.used_s = now

    @staticmethod
    def _has_room(model: ModelRecord, ticket: Ticket) -> bool:
        if len(model.held) >= model.slots:
            return False
        if not model.held or not model.kv_tokens:
            return True
        taken_tokens = sum(other.size_tokens for other in model.held.values())
        return taken_tokens + ticket.size_tokens <= model.kv_tokens

    def _settle_drain(self, model: ModelRecord, now: float) -> None:
        if model.place is not Place.DRAINING:
            return
        if model.drains_for and not self._model(model.drains_for).is_needed:
            model.place = Place.READY
            model.drains_for = None
            self._grant(model, now)
        elif not model.held:
            other = model.drains_for
            self._unload(model, f"made room for {other}" if other else model.drain_reason)

    def _load_next(self, now: float) -> None:
        if any(is_moving(model) for model in self._models.values()):
            return
        closed = self._admission.closed_models
        needed = [
            m
            for m in self._models.values()
            if m.place is Place.UNLOADED and m.is_needed and m.model_id not in closed
        ]
        for model in sorted(needed, key=lambda m: (not m.has_reserved, m.rank_s)):
            if not model.lacking_bytes:
                model.place = Place.LOADING
                model.has_reserved = False
                self._effects.start_load(model.model_id)
                return
            if self._make_room(model, now):  # 10
                return

    def _make_room(self, model: ModelRecord, now: float) -> bool:
        """Whether room is being made; the model is tried again once that is done."""
        others = [
            other
            for other in self._models.values()
            if other.place is Place.READY and other.model_id not in self._policy.pinned
        ]
        device, lacking_bytes = model.lacking_device, model.lacking_bytes
        if sum(bytes_on(other, device) for other in others) < lacking_bytes:
            self._give_up(model, model.lacking_error or RuntimeError("no room"))
            return False
        since_s = model.waiting[0].enqueued_s if model.waiting else now
        patience_s = self._policy.swap_patience_s
        open_to = [
            other
            for other in others
            if not other.waiting or now - max(since_s, other.ready_s) >= patience_s
        ]
        idle = [other for other in open_to if not other.held and not other.waiting]
        victims = victims_for(idle, device, lacking_bytes) or victims_for(
            open_to, device, lacking_bytes
        )
        if victims is None:
            return False
        model.lacking_bytes = 0
        model.has_reserved = True
        for victim in victims:
            if victim.held:
                victim.place = Place.DRAINING
                victim.drains_for = model.model_id
            else:
                self._unload(victim, f"made room for {model.model_id}")
        return True

    def _unload_idle(self, now: float) -> None:  # 11
        timeout_s = self._policy.idle_timeout_s
        for model in self._models.values():
            is_idle = model.place is Place.READY and not model.held and not model.waiting
            is_pinned = model.model_id in self._policy.pinned
            if timeout_s and is_idle and not is_pinned and now - model.used_s >= timeout_s:
                self._unload(model, f"idle for {timeout_s:.0f} s")

    def _unload(self, model: ModelRecord, reason: str) -> None:
        assert not model.held, "a busy worker is never unloaded"
        model.place = Place.UNLOADING
        self._effects.unload(model.model_id, reason)

    def _give_up(self, model: ModelRecord, error: Exception) -> None:
        model.lacking_bytes = 0
        model.lacking_error = None
        model.is_wanted = False
        retry_s = _bounded(USUAL_HOLD_S)
        self._refuse_all(model, Refusal(RefusalKind.LOAD_FAILED, str(error), retry_s, error))
        self._effects.give_up(model.model_id, error)

    def _refuse_all(self, model: ModelRecord, refusal: Refusal) -> None:
        waiting, model.waiting = model.waiting, []
        for ticket in waiting:
            self._effects.refuse(ticket, refusal)

    @staticmethod
    def _retire(model: ModelRecord) -> None:
        model.stale |= model.held
        model.held = {}

    def _model(self, model_id: str) -> ModelRecord:
        model = self._models.get(model_id)
        if model is None:
            model = self._models[model_id] = ModelRecord(model_id)
        return model


def _bounded(seconds: float) -> int:
    return int(max(MIN_RETRY_S, min(MAX_RETRY_S, math.ceil(seconds))))
