"""The widgets of one setting, made from its description: number, choice, switch or text. Thread: GUI.

A field shows a value and announces what the user did to it; it owns no truth.
"""

from collections.abc import Sequence

from PySide6.QtCore import QEvent, QObject, Qt, Signal, Slot
from PySide6.QtWidgets import (
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QSlider,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.core.settings_meta import Description
from app.ui.i18n import tr
from app.ui.scale import Scale, scale_for
from app.ui.theme import colours, tint
from app.ui.units import value_text

_TITLE_WIDTH = 170
_NUMBER_WIDTH = 190


class _CalmWheel(QObject):
    """Keeps a page that is being scrolled from turning the values under the mouse."""

    def eventFilter(self, watched: QObject, happened: QEvent) -> bool:  # noqa: N802 - Qt's name
        is_idle = isinstance(watched, QWidget) and not watched.hasFocus()
        if happened.type() is QEvent.Type.Wheel and is_idle:
            happened.ignore()
            return True
        return super().eventFilter(watched, happened)


class Field(QWidget):
    """One row: title, control, reset, and a hint below. `changed(key, value)` is the user's doing."""

    changed = Signal(str, object)

    def __init__(self, known: Description, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.known = known
        self.key = known.key
        self._is_showing = False
        self._shown: object = None
        self._calm = _CalmWheel(self)
        title = tr(known.meta.title) + (f" {known.device}" if known.device else "")
        self.title = QLabel(title)
        self.title.setFixedWidth(_TITLE_WIDTH)
        self.title.setWordWrap(True)
        self.setToolTip(tr(known.meta.text))
        self._reset = QToolButton()
        self._reset.setText("↺")
        self._reset.setAutoRaise(True)
        self._reset.setToolTip(tr("Back to the preset"))
        self._reset.setAccessibleName(tr("Reset") + f" {title}")
        self._reset.clicked.connect(self._on_reset)
        self.hint = QLabel()
        self.hint.setWordWrap(True)
        self.hint.setTextFormat(Qt.TextFormat.PlainText)
        self.hint.setVisible(False)
        row = QHBoxLayout()
        row.addWidget(self.title)
        row.addWidget(self._make_control(title), 1)
        row.addWidget(self._reset)
        below = QHBoxLayout()
        below.addSpacing(_TITLE_WIDTH + row.spacing())
        below.addWidget(self.hint, 1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 1, 0, 1)
        layout.setSpacing(0)
        layout.addLayout(row)
        layout.addLayout(below)

    def show_value(
        self, value: object, effective: object = None, *, is_changed: bool = False
    ) -> None:
        """Shows `value`; `effective` is what stands in for a 0 or `auto`, where it is known.

        Args:
            value: of the setting.
            effective: figure or word.
            is_changed: whether it waits for Apply, which the title shows.
        """
        if is_changed != self.title.font().bold():
            font = self.title.font()
            font.setBold(is_changed)
            self.title.setFont(font)
        if (value, effective) == self._shown:
            return
        self._shown = (value, effective)
        self._is_showing = True
        self._display(value, effective)
        self._reset.setEnabled(value != self.known.default)
        self._is_showing = False

    def show_hint(self, text: str, *, is_wrong: bool) -> None:
        """A line below the control; red when the value is what does not fit."""
        colour = colours(self.palette()).wrong if is_wrong else None
        tint(self.hint, colour)
        tint(self.title, colour)
        self.hint.setText(text)
        self.hint.setVisible(bool(text))

    def _make_control(self, title: str) -> QWidget:
        raise NotImplementedError

    def _display(self, value: object, effective: object) -> None:
        raise NotImplementedError

    def _tell(self, value: object) -> None:
        if not self._is_showing:
            self._shown = None  # the control is ahead of what it was told to show
            self.changed.emit(self.key, value)

    @Slot()
    def _on_reset(self) -> None:
        self.changed.emit(self.key, self.known.default)


class NumberField(Field):
    """A slider (where wanted) and a number field with its unit."""

    def __init__(
        self,
        known: Description,
        *,
        has_slider: bool,
        machine_high: float | None = None,
        parent: QWidget | None = None,
    ) -> None:
        self.scale: Scale = scale_for(known, machine_high)
        self._has_slider = has_slider
        super().__init__(known, parent)

    def set_high(self, machine_high: float | None) -> None:
        """Where the machine or the model ends has become known, or has changed."""
        self.scale = scale_for(self.known, machine_high)
        self._is_showing = True
        self.slider.setRange(0, self.scale.positions)
        self._is_showing = False
        self._shown = None

    def _make_control(self, title: str) -> QWidget:
        control = QWidget()
        layout = QHBoxLayout(control)
        layout.setContentsMargins(0, 0, 0, 0)
        meta = self.known.meta
        self.slider = QSlider(Qt.Orientation.Horizontal)
        self.slider.setRange(0, self.scale.positions)
        self.slider.setPageStep(max(1, self.scale.positions // 10))
        self.slider.setAccessibleName(title)
        self.slider.setMinimumWidth(120)
        self.slider.installEventFilter(self._calm)
        self.slider.setVisible(self._has_slider)
        self.slider.valueChanged.connect(self._on_slider)
        self.number = QDoubleSpinBox()
        self.number.setAccessibleName(title)
        self.number.setDecimals(self.scale.decimals)
        self.number.setRange(
            self.scale.shown(meta.minimum or 0),
            self.scale.shown(meta.maximum if meta.maximum is not None else 1e12),
        )
        self.number.setSingleStep(self.scale.shown(meta.step))
        self.number.setSuffix(self.scale.suffix)
        self.number.setGroupSeparatorShown(bool(meta.unit))  # a port is a name, not a count
        self.number.setFixedWidth(_NUMBER_WIDTH)
        self.number.installEventFilter(self._calm)
        self.number.valueChanged.connect(self._on_number)
        if self._has_slider:
            layout.addWidget(self.slider, 1)
        layout.addWidget(self.number)
        if not self._has_slider:
            words = QLabel(tr(meta.text))
            words.setWordWrap(True)
            layout.addSpacing(6)
            layout.addWidget(words, 1)
        return control

    def _display(self, value: object, effective: object) -> None:
        assert isinstance(value, int | float)
        meta = self.known.meta
        shown = self.scale.shown(value)
        is_same = round(shown, self.scale.decimals) == self.number.value()
        # Half-typed text is not written over: "0" may become "0.5".
        special = self.number.specialValueText()
        is_typed = bool(special) and self.number.text() != special
        if meta.zero_means and not value and not (is_same and is_typed):
            words = tr(meta.zero_means)
            if isinstance(effective, int | float) and effective:
                words = tr("auto") + f": {value_text(effective, meta.unit)}"
            self.number.setSpecialValueText(words)
        if not is_same:
            self.number.setValue(shown)
        stands = effective if not value and isinstance(effective, int | float) else value
        self.slider.setValue(self.scale.position(float(stands)))

    @Slot(int)
    def _on_slider(self, position: int) -> None:
        self._tell(self.known.kind(self.scale.value(position)))

    @Slot(float)
    def _on_number(self, shown: float) -> None:
        meant = self.scale.meant(shown)
        self._tell(round(meant) if self.known.kind is int else meant)


class ChoiceField(Field):
    """One of a few words; `auto` says what it comes to."""

    def __init__(
        self,
        known: Description,
        choices: Sequence[str],
        parent: QWidget | None = None,
    ) -> None:
        self._choices = list(choices)
        super().__init__(known, parent)

    def set_choices(self, choices: Sequence[str]) -> None:
        """Another list, such as models that were added."""
        if list(choices) == self._choices:
            return
        self._choices = list(choices)
        self._is_showing = True
        self.combo.clear()
        self.combo.addItems([_word(choice) for choice in self._choices])
        self._is_showing = False
        self._shown = None

    def _make_control(self, title: str) -> QWidget:
        self.combo = QComboBox()
        self.combo.addItems([_word(choice) for choice in self._choices])
        self.combo.setAccessibleName(title)
        self.combo.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.combo.installEventFilter(self._calm)
        self.combo.currentIndexChanged.connect(self._on_chosen)
        return self.combo

    def _display(self, value: object, effective: object) -> None:
        if value not in self._choices:
            self.set_choices([*self._choices, str(value)])
        index = self._choices.index(str(value))
        for place, choice in enumerate(self._choices):
            text = _word(choice)
            if choice in {"auto", ""} and effective:
                text += f": {_word(str(effective))}"
            self.combo.setItemText(place, text)
        self.combo.setCurrentIndex(index)

    @Slot(int)
    def _on_chosen(self, index: int) -> None:
        if 0 <= index < len(self._choices):
            self._tell(self._choices[index])


class SwitchField(Field):
    """On or off."""

    def _make_control(self, title: str) -> QWidget:
        self.box = QCheckBox(tr(self.known.meta.text))
        self.box.setAccessibleName(title)
        self.box.toggled.connect(self._tell)
        return self.box

    def _display(self, value: object, effective: object) -> None:
        del effective
        self.box.setChecked(bool(value))


class TextField(Field):
    """A line of text, told as it is typed. A key is shown as dots."""

    def _make_control(self, title: str) -> QWidget:
        self.edit = QLineEdit()
        self.edit.setAccessibleName(title)
        if self.known.name.endswith("key"):
            self.edit.setEchoMode(QLineEdit.EchoMode.PasswordEchoOnEdit)
        self.edit.textEdited.connect(self._on_edited)
        words = QLabel(tr(self.known.meta.text))
        words.setWordWrap(True)
        control = QWidget()
        layout = QVBoxLayout(control)
        layout.setContentsMargins(0, 0, 0, 2)
        layout.setSpacing(2)
        layout.addWidget(self.edit)
        layout.addWidget(words)
        return control

    def _display(self, value: object, effective: object) -> None:
        del effective
        if self.edit.text().strip() != str(value):  # a space at the end is not taken away in typing
            self.edit.setText(str(value))

    @Slot(str)
    def _on_edited(self, text: str) -> None:
        self._tell(text.strip())


_SPELLED = {"gpu": "GPU", "cpu": "CPU", "ram": "RAM"}


def _word(choice: str) -> str:
    if not choice:
        return tr("first installed")
    if "_only" in choice or "_use_" in choice:
        choice = " ".join(_SPELLED.get(part, part) for part in choice.split("_"))
    return tr(choice)


def make_field(
    known: Description,
    *,
    has_slider: bool = False,
    machine_high: float | None = None,
    choices: Sequence[str] | None = None,
) -> Field:
    """The field that suits a setting; `choices` makes a choice of what would be free text."""
    if choices is not None or known.choices:
        return ChoiceField(known, choices if choices is not None else known.choices)
    if known.kind is bool:
        return SwitchField(known)
    if known.kind is str:
        return TextField(known)
    return NumberField(known, has_slider=has_slider, machine_high=machine_high)
