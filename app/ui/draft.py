"""Settings as the panel shows them: what is in force, and what the user has moved since. Pure.

The pages write into one `Draft`; Apply sends its changes to the core and the next snapshot clears it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.settings import Settings, describe
from app.core.settings_meta import Needs

_ORDER = (Needs.NOTHING, Needs.RELOAD, Needs.RESTART)


@dataclass(frozen=True, slots=True)
class Draft:
    """`base` is in force; `changes` (dotted key to value) are not yet."""

    base: Settings = field(default_factory=Settings)
    changes: Mapping[str, object] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """As they would be."""
        return self.base.replace(self.changes)

    @property
    def needs(self) -> Needs:
        """The most that any of the changes takes."""
        found = (describe(key).meta.needs for key in self.changes)
        return max(found, key=_ORDER.index, default=Needs.NOTHING)

    def with_change(self, key: str, value: object) -> "Draft":
        """One value moved; moved back to what is in force, it is no change.

        Raises:
            SettingsInvalid: when the value is none that the setting takes.
        """
        checked = describe(key).check(value)
        changes = {name: kept for name, kept in self.changes.items() if name != key}
        if checked != self.base.value(key):
            changes[key] = checked
        return Draft(self.base, changes)

    def rebased(self, base: Settings) -> "Draft":
        """The same wishes over newer settings; those that have come true are dropped."""
        left = {key: value for key, value in self.changes.items() if base.value(key) != value}
        return Draft(base, left)

    def value(self, key: str) -> object:
        return self.changes[key] if key in self.changes else self.base.value(key)
