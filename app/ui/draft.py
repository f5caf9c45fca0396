"""Settings as the panel shows them: what is in force, and what the user has moved since. Pure.

The pages write into one `Draft`; Apply sends its changes to the core and the next snapshot clears it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.settings import Settings, describe
from app.core.settings_meta import Needs


@dataclass(frozen=True, slots=True)
class Draft:
    """`base` is in force; `changes` (dotted key to value) are not yet."""

    base: Settings = field(default_factory=Settings)
    changes: Mapping[str, object] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """As they would be."""
        return self.base.replace(self.changes)

    def keys_needing(self, needs: Needs) -> tuple[str, ...]:
        """Which of the changes take just this, in the order in which they were made."""
        return tuple(key for key in self.changes if describe(key).meta.needs is needs)

    @property
    def pages(self) -> frozenset[str]:
        """The pages that the changes stand on."""
        return frozenset(describe(key).meta.page for key in self.changes)

    @property
    def may_move_memory(self) -> bool:
        """Whether a change is of the kind that decides if the model fits."""
        return "Memory" in self.pages or bool(self.keys_needing(Needs.RELOAD))

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
