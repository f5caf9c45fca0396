"""The first page: one plan bar for each memory, the verdict in words, and the sliders. Thread: GUI.

Each move reprices the bars at once by the formula; the searches (what would fit instead) wait until
the hand rests.
"""

from collections.abc import Mapping

from PySide6.QtCore import Qt, QTimer, Signal, Slot
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QPushButton,
    QScrollArea,
    QVBoxLayout,
    QWidget,
)

from app.core.handle import Snapshot
from app.core.models.choice import Proposal
from app.core.settings import describe
from app.ui.draft import Draft
from app.ui.fields import NumberField
from app.ui.i18n import tr
from app.ui.plan_bar import PlanBar
from app.ui.pricing import Facts, Priced, price
from app.ui.scale import values_of
from app.ui.settings_form import SettingsForm
from app.ui.theme import colours, tint
from app.ui.units import value_text
from app.ui.ways_out import CONTEXT, SLOTS, nearest_that_fits, proposal

_REST_MS = 150
_SEARCHED = (CONTEXT, SLOTS)
"""Beside the setting that was moved last, these are what makes a plan too large."""

_RAM_SIZES = (
    "memory.ram_cap_bytes",
    "memory.ram_reserve_bytes",
    "memory.prompt_cache_bytes",
    "model.spill_limit_bytes",
)


class MemoryPage(QWidget):
    """`moved(key, value)` as of the form; `proposed(changes)` when the user takes what fits.

    `models_asked` when there is no model yet and the user wants one.
    """

    moved = Signal(str, object)
    proposed = Signal(object)
    models_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._facts: Facts | None = None
        self._draft = Draft()
        self._snapshot = Snapshot()
        self._priced: Priced | None = None
        self._last_key = ""
        self._proposal: Proposal | None = None
        self._bars: dict[str, PlanBar] = {}
        self._bar_rows = QVBoxLayout()
        self._bar_rows.setSpacing(6)
        self._verdict = QLabel(tr("Reading this machine…"))
        self._verdict.setWordWrap(True)
        self._way_out = QLabel()
        self._way_out.setWordWrap(True)
        self._way_out.hide()
        self._take = QPushButton(tr("Use what fits"))
        self._take.hide()
        self._take.clicked.connect(self._on_take)
        self.fetch = QPushButton(tr("Fetch a model…"))
        self.fetch.hide()
        self.fetch.clicked.connect(self.models_asked)
        self.form = SettingsForm("Memory", has_sliders=True)
        self.form.moved.connect(self._on_moved)
        self._why = QLabel(f"<b>{tr('Why these figures')}</b>")
        self._why.hide()
        self._reasons = QLabel()
        self._reasons.setWordWrap(True)
        self._reasons.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._rest = QTimer(self)
        self._rest.setSingleShot(True)
        self._rest.timeout.connect(self._on_rest)
        self._lay_out()

    @property
    def priced(self) -> Priced | None:
        return self._priced

    @property
    def is_refused(self) -> bool:
        """Whether the model would not be loaded with the draft."""
        priced = self._priced
        if priced is None or priced.choice is None or self._draft.settings.memory.force_load:
            return False
        return not priced.fits

    @property
    def way_out(self) -> Proposal | None:
        """What would fit instead; searched for if the hand has not rested yet."""
        if self._rest.isActive():
            self._rest.stop()
            self._on_rest()
        return self._proposal

    def show_facts(self, facts: Facts) -> None:
        self._facts = facts
        gpus = [gpu.device for gpu in facts.machine.gpus if gpu.is_usable and not gpu.is_integrated]
        self.form.set_machine(gpus, _highs(facts))
        self._reprice()

    @Slot(str)
    def show_trouble(self, text: str) -> None:
        """The machine could not be read; the rows still work, without prices."""
        self._verdict.setText(text)
        tint(self._verdict, colours(self.palette()).wrong)

    def show_draft(self, draft: Draft, snapshot: Snapshot) -> None:
        self._draft, self._snapshot = draft, snapshot
        models = ("", *(model.model_id for model in snapshot.models))
        self.form.set_choices("model.default", models)
        self._reprice()

    def _lay_out(self) -> None:
        below = QWidget()
        rows = QVBoxLayout(below)
        rows.setContentsMargins(0, 0, 8, 0)
        rows.addWidget(self.form)
        rows.addSpacing(6)
        rows.addWidget(self._why)
        rows.addWidget(self._reasons)
        rows.addStretch(1)
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setWidget(below)
        words = QHBoxLayout()
        words.addWidget(self._way_out, 1)
        words.addWidget(self._take)
        verdict = QHBoxLayout()
        verdict.addWidget(self._verdict, 1)
        verdict.addWidget(self.fetch)
        layout = QVBoxLayout(self)
        layout.addLayout(self._bar_rows)
        layout.addLayout(verdict)
        layout.addLayout(words)
        layout.addWidget(scroll, 1)

    def _reprice(self) -> None:
        """Bars, verdict and rows from the figures at hand; cheap, for every move."""
        facts = self._facts
        if facts is None:
            self.form.show_draft(self._draft, {})
            return
        priced = price(facts, self._draft.settings, self._snapshot)
        self._priced = priced
        for bar in priced.bars:
            if bar.device not in self._bars:
                self._bars[bar.device] = PlanBar()
                self._bar_rows.addWidget(self._bars[bar.device])
            self._bars[bar.device].show_bar(bar)
        for device in self._bars.keys() - {bar.device for bar in priced.bars}:
            self._bars.pop(device).deleteLater()
        self.form.show_draft(self._draft, priced.effective)
        self._show_verdict(priced)
        if priced.fits:
            self._show_way_out(None, {})
        self._rest.start(_REST_MS)

    def _show_verdict(self, priced: Priced) -> None:
        paint = colours(self.palette())
        has_model = priced.choice is not None
        self.fetch.setVisible(not self._snapshot.models)
        head = ""
        if has_model:
            head = (tr("Fits.") if priced.fits else tr("Does not fit.")) + " "
        warnings = priced.choice.warnings if priced.choice else ()
        self._verdict.setText(" ".join((head + priced.sentence, *warnings)))
        colour = paint.right if priced.fits else paint.wrong
        tint(self._verdict, colour if has_model else None)

    def _show_way_out(self, found: Proposal | None, wrong: Mapping[str, str]) -> None:
        self._proposal = found
        self._way_out.setText(found.sentence if found else "")
        self._way_out.setVisible(found is not None)
        self._take.setVisible(found is not None and bool(found.changes))
        self.form.show_hints(wrong)

    @Slot()
    def _on_rest(self) -> None:
        """What need not follow each move: a long text makes the whole page be laid out again."""
        reasons = self._priced.choice.reasons if self._priced and self._priced.choice else ()
        text = "\n".join(f"• {reason}" for reason in reasons)
        if text != self._reasons.text():
            self._reasons.setText(text)
            self._why.setVisible(bool(text))
        self.search()

    def search(self) -> None:
        """Looks for what would fit, once the hand rests on figures that do not."""
        facts = self._facts
        if facts is None or facts.spec is None or self._priced is None or self._priced.fits:
            return
        settings = self._draft.settings
        wrong: dict[str, str] = {}
        for key in dict.fromkeys((self._last_key, *_SEARCHED)):
            one = self.form.fields.get(key)
            if not isinstance(one, NumberField) or not settings.value(key):
                continue
            value = settings.value(key)
            assert isinstance(value, int | float)
            values = values_of(one.known, max(one.scale.high, value))
            best = nearest_that_fits(facts, settings, self._snapshot, key, values)
            wrong[key] = _hint(key, best, value)
        self._show_way_out(proposal(facts, settings, self._snapshot), wrong)

    @Slot(str, object)
    def _on_moved(self, key: str, value: object) -> None:
        self._last_key = key
        self.moved.emit(key, value)

    @Slot()
    def _on_take(self) -> None:
        if self._proposal is not None:
            self.proposed.emit(dict(self._proposal.changes))


def _hint(key: str, best: int | None, value: float) -> str:
    if best is None:
        return tr("No value fits while the rest stays as it is.")
    edge = tr("The largest that fits") if best < value else tr("The smallest that fits")
    return f"{edge}: {value_text(best, describe(key).meta.unit)}"


def _highs(facts: Facts) -> dict[str, float]:
    """Where the sliders end here: at the machine's memory and cores, and the model's context."""
    machine, spec = facts.machine, facts.spec
    found = dict.fromkeys(_RAM_SIZES, float(machine.ram_total_bytes))
    for gpu in machine.gpus:
        found[f"memory.gpu_caps_bytes.{gpu.device}"] = gpu.total_bytes
        found[f"memory.gpu_reserve_bytes.{gpu.device}"] = gpu.total_bytes
    found["model.threads"] = machine.logical_cores
    found["model.slots"] = 16
    if spec is not None and spec.trained_context_tokens:
        found["model.context_tokens"] = spec.trained_context_tokens
    return found
