"""What would fit where the settings do not: the proposal, and the hint of each field. Pure.

Both hold the figures that were refused and search with the same steps, so that what stands below a
field is one of the ways that the proposal names. A search takes many prices: it waits until the hand
rests. Used by the memory page and the tray.
"""

import dataclasses

from app.core.errors import CoolheadError
from app.core.handle import Snapshot
from app.core.models.choice import Choice, Proposal
from app.core.models.fit import propose
from app.core.models.presets import choose
from app.core.models.pricing import Pricing
from app.core.models.propose import CONTEXT_STEP_TOKENS, LEAST_CONTEXT_TOKENS
from app.core.settings import Settings
from app.ui.pricing import Facts, price, room_for

CONTEXT = "model.context_tokens"
SLOTS = "model.slots"


def proposal(facts: Facts, settings: Settings, snapshot: Snapshot) -> Proposal | None:
    """What would fit instead of `settings`; None for no way."""
    found = _refused(facts, settings, snapshot)
    if found is None:
        return None
    room, choice = found
    try:
        return propose(room.spec, choice.load, room.machine, room.limits, choice.gpus)
    except CoolheadError:
        return None


def nearest_that_fits(
    facts: Facts, settings: Settings, snapshot: Snapshot, key: str, values: range
) -> int | None:
    """The value of `key` nearest to the one refused that fits with all else as it is; None for none.

    Args:
        facts: machine and model.
        settings: that do not fit as they are.
        snapshot: for what is running.
        key: of a number.
        values: that may be tried, rising.
    """
    if key in {CONTEXT, SLOTS}:
        best = _beside_the_rest(facts, settings, snapshot, key)
        if best and price(facts, settings.replace({key: best}), snapshot).fits:
            return best
    return _search(facts, settings, snapshot, key, values)


def _beside_the_rest(facts: Facts, settings: Settings, snapshot: Snapshot, key: str) -> int:
    """The most of context or slots beside the other figures as they were refused; 0 for none."""
    found = _refused(facts, settings, snapshot)
    if found is None:
        return 0
    room, choice = found
    load = choice.load
    if key == SLOTS:
        return room.most_slots(load)
    return room.largest_context(
        load, load.context_tokens, LEAST_CONTEXT_TOKENS, CONTEXT_STEP_TOKENS
    )


def _refused(facts: Facts, settings: Settings, snapshot: Snapshot) -> tuple[Pricing, Choice] | None:
    room = room_for(facts, settings, snapshot)
    if room is None:
        return None
    try:
        choice = choose(room.spec, room.machine, settings)
    except CoolheadError:
        return None
    gpus = choice.gpus if choice.load.gpu_layers else ()
    return dataclasses.replace(room, gpus=gpus), choice


def _search(
    facts: Facts, settings: Settings, snapshot: Snapshot, key: str, values: range
) -> int | None:
    def fits(index: int) -> bool:
        return price(facts, settings.replace({key: values[index]}), snapshot).fits

    first, last = 0, len(values) - 1
    if last < 0:
        return None
    low_fits, high_fits = fits(first), fits(last)
    if not low_fits and not high_fits:
        return None
    if low_fits and high_fits:
        return values[last]
    # One end fits and the other does not: halve towards the border between them.
    good, bad = (first, last) if low_fits else (last, first)
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        if fits(middle):
            good = middle
        else:
            bad = middle
    return values[good]
