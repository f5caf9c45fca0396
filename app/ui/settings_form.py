"""The rows of one page, drawn from the settings' own descriptions: a new setting needs no code here.

Used by every page of the panel. Thread: GUI.
"""

from collections.abc import Mapping, Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from app.core.settings import all_settings, describe
from app.core.settings_meta import Description
from app.ui.draft import Draft
from app.ui.fields import ChoiceField, Field, NumberField, make_field


def pages() -> tuple[str, ...]:
    """The pages that the settings name: memory first, the rest in the order of the settings."""
    names = dict.fromkeys(known.meta.page for known in all_settings())
    return ("Memory", *(name for name in names if name != "Memory"))


class SettingsForm(QWidget):
    """A row for each setting of `page`. `moved(key, value)` is what the user did."""

    moved = Signal(str, object)

    def __init__(self, page: str, *, has_sliders: bool, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._page = page
        self._has_sliders = has_sliders
        self._devices: tuple[str, ...] = ()
        self._choices: dict[str, tuple[str, ...]] = {}
        self._highs: Mapping[str, float] = {}
        self.fields: dict[str, Field] = {}
        self._rows = QVBoxLayout(self)
        self._rows.setContentsMargins(0, 0, 0, 0)
        self._rows.setSpacing(2)
        self._build()

    def set_machine(self, devices: Sequence[str], highs: Mapping[str, float]) -> None:
        """Which GPUs there are, and where this machine ends, by key."""
        if tuple(devices) != self._devices:
            self._devices, self._highs = tuple(devices), highs
            self._build()
        elif highs != self._highs:
            self._highs = highs
            for key, one in self.fields.items():
                if isinstance(one, NumberField):
                    one.set_high(highs.get(key))

    def set_choices(self, key: str, choices: Sequence[str]) -> None:
        """Makes a choice of what the settings hold as free text, such as a model's name."""
        if self._choices.get(key) == tuple(choices):
            return
        self._choices[key] = tuple(choices)
        one = self.fields.get(key)
        if isinstance(one, ChoiceField):
            one.set_choices(choices)
        else:
            self._build()

    def show_draft(self, draft: Draft, effective: Mapping[str, object]) -> None:
        for key, one in self.fields.items():
            one.show_value(draft.value(key), effective.get(key), is_changed=key in draft.changes)

    def show_hints(self, wrong: Mapping[str, str]) -> None:
        """Red lines below the rows named in `wrong`; none below the others."""
        for key, one in self.fields.items():
            one.show_hint(wrong.get(key, ""), is_wrong=key in wrong)

    def _known(self) -> list[Description]:
        found = []
        for known in all_settings():
            if known.meta.page != self._page:
                continue
            if known.per_device:
                found += [describe(f"{known.key}.{device}") for device in self._devices]
            else:
                found.append(known)
        return found

    def _build(self) -> None:
        while (item := self._rows.takeAt(0)) is not None:
            widget = item.widget()
            if widget is not None:
                widget.hide()
                widget.deleteLater()
        self.fields = {}
        for known in self._known():
            one = make_field(
                known,
                has_slider=self._has_sliders,
                machine_high=self._highs.get(known.key),
                choices=self._choices.get(known.key),
            )
            one.changed.connect(self.moved)
            self.fields[known.key] = one
            self._rows.addWidget(one)
        self._rows.addStretch(1)
