"""What a setting is: its words, unit and range, and the check of a value against them. Pure.

`settings.py` is the list of them; pages, docs and the command line draw on what stands here.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.core.errors import SettingsInvalid

MIB = 1024 * 1024
GIB = 1024 * MIB


class Needs(StrEnum):
    """What a change takes to come into force."""

    NOTHING = "nothing"
    RELOAD = "reload"
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Meta:
    """The words and bounds of one setting. `minimum`, `maximum` and `step` are in `unit`.

    `refusal` says why other values are refused, where that is not plain.
    """

    title: str
    text: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    step: float = 1
    page: str = "General"
    needs: Needs = Needs.NOTHING
    zero_means: str = ""
    refusal: str = ""


def setting(default: Any, title: str, text: str, **meta: Any) -> Any:
    made = Meta(title, text, **meta)
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"meta": made})
    return field(default=default, metadata={"meta": made})


@dataclass(frozen=True, slots=True)
class Description:
    """One setting as pages, docs and checks see it.

    `key` is `section.name`; a per-device setting is addressed as `section.name.DEVICE`.
    """

    section: str
    name: str
    kind: type
    choices: tuple[str, ...]
    default: object
    meta: Meta
    per_device: bool = False
    device: str = ""

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" + (f".{self.device}" if self.device else "")

    def check(self, raw: object) -> Any:
        """`raw` as this setting's type, text included.

        Raises:
            SettingsInvalid: naming the key, what was given, and what is taken.
        """
        if self.choices:
            if raw in self.choices:
                return raw
            why = f", {self.meta.refusal}" if self.meta.refusal else ""
            raise self._wrong(raw, "one of " + ", ".join(self.choices) + why)
        if self.kind is bool:
            return self._check_bool(raw)
        if self.kind is str:
            if isinstance(raw, str):
                return raw
            raise self._wrong(raw, "text")
        return self._check_number(raw)

    def _check_bool(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
        if isinstance(raw, str) and raw.lower() in words:
            return words[raw.lower()]
        raise self._wrong(raw, "true or false")

    def _check_number(self, raw: object) -> float:
        if raw == "auto" and self.meta.zero_means:
            return 0
        number: float
        try:
            if isinstance(raw, str):
                number = (
                    parse_size(raw) if self.meta.unit in {"bytes", "tokens"} else self.kind(raw)
                )
            elif (
                isinstance(raw, bool)
                or not isinstance(raw, int | float)
                or (self.kind is int and raw != int(raw))
            ):
                raise ValueError
            else:
                number = self.kind(raw)
        except (ValueError, OverflowError) as error:
            whole = "a whole number" if self.kind is int else "a number"
            raise self._wrong(
                raw, whole + (f" of {self.meta.unit}" if self.meta.unit else "")
            ) from error
        low, high = self.meta.minimum, self.meta.maximum
        if (
            (low is not None and number < low)
            or (high is not None and number > high)
            or math.isnan(number)
        ):
            raise self._wrong(raw, f"{low:,.12g} to {high:,.12g} {self.meta.unit}".rstrip())
        return number

    def _wrong(self, raw: object, wanted: str) -> SettingsInvalid:
        return SettingsInvalid(
            f"{self.key} cannot be {raw!r}: it takes {wanted}.", key=self.key, value=repr(raw)
        )


def parse_size(text: str) -> int:
    """A count from `512`, `512M`, `1.5GiB` and the like; units are powers of 1,024.

    Raises:
        ValueError: when it is no size.
    """
    trimmed = text.strip().lower().removesuffix("ib").removesuffix("b")
    units = {"k": 1024, "m": MIB, "g": GIB, "t": 1024 * GIB}
    if trimmed and trimmed[-1] in units:
        return int(float(trimmed[:-1]) * units[trimmed[-1]])
    return int(float(trimmed))
