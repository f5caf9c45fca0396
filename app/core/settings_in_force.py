"""The settings that hold now, and the one way to change them: checked, saved, then in force.

Owned by the composition, on the core loop; everyone else asks for `settings` when they need them.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from app.core.settings import Settings, describe
from app.core.settings_file import SettingsFile
from app.core.settings_meta import Needs


@dataclass(frozen=True, slots=True)
class Change:
    """One change that is saved. `needs` is what it takes to carry it out."""

    before: Settings
    after: Settings
    needs: frozenset[Needs]

    @property
    def strongest(self) -> Needs:
        """The most that is needed."""
        order = (Needs.RESTART, Needs.RELOAD)
        return next((need for need in order if need in self.needs), Needs.NOTHING)


class SettingsInForce:
    """Thread: core loop, its one writer."""

    def __init__(self, file: SettingsFile, settings: Settings) -> None:
        self.settings = settings
        self._file = file
        self._lock = asyncio.Lock()  # two changes at once would lose one

    async def change(self, changes: Mapping[str, object]) -> Change:
        """Puts `changes` (dotted key to value) into force.

        Raises:
            SettingsInvalid: one of them is wrong; nothing is changed.
            FolderUnusable: they cannot be saved; nothing is changed.
        """
        async with self._lock:
            before = self.settings
            after = before.replace(changes)
            await asyncio.to_thread(self._file.save, after)
            self.settings = after
        changed = [key for key in changes if before.value(key) != after.value(key)]
        return Change(before, after, frozenset(describe(key).meta.needs for key in changed))
