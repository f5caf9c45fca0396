"""A model on a machine, priced at many figures: what presets and proposals search with. Pure.

All searches halve an interval over the formula, which costs well under a millisecond; they rest on
memory growing with the context, the slots, and the layers that are put into it.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from app.core.hardware.machine import Machine
from app.core.models.judge import RAM, Fit, judge, judge_all
from app.core.models.limits import Limits
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan, plan_memory
from app.core.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Pricing:
    """One model, one machine, one set of limits; `gpus` are the devices that may be used."""

    spec: ModelSpec
    machine: Machine
    limits: Limits
    gpus: tuple[str, ...] = ()

    def plan(self, load: LoadSettings) -> MemoryPlan:
        return plan_memory(self.spec, load, self.gpus)

    def fit(self, load: LoadSettings) -> Fit:
        return judge(self.plan(load), self.machine, self.limits)

    def fits(self, load: LoadSettings) -> bool:
        return self.fit(load).fits

    def fits_gpus(self, load: LoadSettings) -> bool:
        """Whether every GPU's part fits, whatever RAM says."""
        verdicts = judge_all(self.plan(load), self.machine, self.limits)
        return all(fit.fits for fit in verdicts if fit.device != RAM)

    def largest_context(
        self, load: LoadSettings, most_tokens: int, least_tokens: int, step_tokens: int = 256
    ) -> int:
        """The longest context, in steps, that fits with the other figures of `load`; 0 for none."""
        if self.fits(dataclasses.replace(load, context_tokens=most_tokens)):
            return most_tokens
        if most_tokens <= least_tokens:
            return 0
        low, high = -(-least_tokens // step_tokens), most_tokens // step_tokens
        steps = largest(
            low,
            high,
            lambda n: self.fits(dataclasses.replace(load, context_tokens=n * step_tokens)),
        )
        return steps * step_tokens

    def most_slots(self, load: LoadSettings) -> int:
        """The most slots, up to those of `load`, that fit with its other figures; 0 for none."""
        return largest(1, load.slots, lambda n: self.fits(dataclasses.replace(load, slots=n)))


def largest(low: int, high: int, is_good: Callable[[int], bool]) -> int:
    """The largest whole number in low..high that is good, where all below a good one are; or 0."""
    best = 0
    while low <= high:
        middle = (low + high) // 2
        if is_good(middle):
            best, low = middle, middle + 1
        else:
            high = middle - 1
    return best
