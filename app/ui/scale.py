"""How a number setting lies on a slider and in a number field: range, steps, display unit. Pure."""

from dataclasses import dataclass

from app.core.settings_meta import GIB, MIB, Description

_MOST_POSITIONS = 1024
"""More than a slider has pixels."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`low`, `high` and `step` of the slider in the setting's own unit; `factor` is one display unit."""

    low: float
    high: float
    step: float
    factor: float
    suffix: str
    decimals: int

    @property
    def positions(self) -> int:
        """The slider runs from 0 to this."""
        return max(1, round((self.high - self.low) / self.step))

    def value(self, position: int) -> float:
        return min(self.high, self.low + position * self.step)

    def position(self, value: float) -> int:
        return max(0, min(self.positions, round((value - self.low) / self.step)))

    def shown(self, value: float) -> float:
        """`value` in the display unit."""
        return value / self.factor

    def meant(self, shown: float) -> float:
        """What `shown` in the display unit stands for."""
        return shown * self.factor


def scale_for(known: Description, machine_high: float | None = None) -> Scale:
    """The scale of a setting.

    Args:
        known: a number setting.
        machine_high: where this machine or model ends, which is below what the setting allows.
    """
    meta = known.meta
    low = meta.minimum or 0
    high = meta.maximum if meta.maximum is not None else low + 100 * meta.step
    if machine_high:
        high = max(low + meta.step, min(high, machine_high))
    step = meta.step or 1
    if meta.zero_means and low == 0:
        low = step  # 0 is no length: it is the reset button's
    while (high - low) / step > _MOST_POSITIONS:
        step *= 2
    if meta.unit != "bytes":
        decimals = 0 if known.kind is int or float(meta.step).is_integer() else 2
        return Scale(low, high, step, 1, f" {meta.unit}".rstrip(), decimals)
    if meta.step >= 256 * MIB:
        return Scale(low, high, step, GIB, " GiB", 2)
    return Scale(low, high, step, MIB, " MiB", 0)


def values_of(known: Description, most: float) -> range:
    """The values of a whole number setting up to `most`, for a search: sizes to the MiB.

    A slider ends at the machine and takes wider steps: what it skips may fit.
    """
    step = MIB if known.meta.unit == "bytes" else max(1, int(known.meta.step))
    low = int(known.meta.minimum or 0)
    if known.meta.zero_means and low == 0:
        low = step
    return range(low, int(most) + 1, step)
