"""The row below the pages: what waits for Apply, on whichever page, what it takes, and the buttons.

One draft serves all pages, so the row names every change that Apply would carry out. Thread: GUI.
"""

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLabel, QPushButton, QWidget

from app.core.settings import describe
from app.core.settings_meta import Needs
from app.ui.draft import Draft
from app.ui.i18n import tr
from app.ui.theme import colours, tint

_TAKES = {
    Needs.NOTHING: "At once",
    Needs.RELOAD: "Reloads the model, after answers in progress are finished",
    Needs.RESTART: "At the next start of Coolhead",
}
_MOST_NAMED = 4


def note_of(draft: Draft, page: str) -> str:
    """Every change by its title, under what it takes; those of other pages with their page."""
    parts = []
    for needs, head in _TAKES.items():
        keys = draft.keys_needing(needs)
        if not keys:
            continue
        titles = [_title(key, page) for key in keys[:_MOST_NAMED]]
        if len(keys) > _MOST_NAMED:
            titles.append(f"{len(keys) - _MOST_NAMED} " + tr("more"))
        parts.append(f"{tr(head)}: {', '.join(titles)}.")
    return " ".join(parts)


def _title(key: str, page: str) -> str:
    known = describe(key)
    title = tr(known.meta.title) + (f" {known.device}" if known.device else "")
    if known.meta.page == page:
        return title
    return f"{title} ({tr('page')} {tr(known.meta.page)})"


class ApplyBar(QWidget):
    """Signals: `apply_asked`, `revert_asked`."""

    apply_asked = Signal()
    revert_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        row = QHBoxLayout(self)
        row.setContentsMargins(9, 0, 9, 0)
        self.note = QLabel()
        self.note.setWordWrap(True)
        self.revert = QPushButton(tr("Revert"))
        self.revert.clicked.connect(self.revert_asked)
        self.apply = QPushButton(tr("Apply"))
        self.apply.setDefault(True)
        self.apply.clicked.connect(self.apply_asked)
        row.addWidget(self.note, 1)
        row.addWidget(self.revert)
        row.addWidget(self.apply)

    def show_draft(
        self, draft: Draft, page: str, *, fits: bool, is_applying: bool, trouble: str
    ) -> None:
        """Says what Apply would do.

        Args:
            draft: all that was moved.
            page: that can be seen.
            fits: whether the model would load with the draft.
            is_applying: the core is at work.
            trouble: what stopped the last attempt, in words.
        """
        has_changes = bool(draft.changes)
        self.apply.setEnabled(has_changes and not is_applying)
        self.revert.setEnabled(has_changes and not is_applying)
        is_all_here = draft.pages <= {page}
        count = f" ({len(draft.changes)})"
        self.apply.setText(tr("Apply") if is_all_here else tr("Apply all") + count)
        self.revert.setText(tr("Revert") if is_all_here else tr("Revert all") + count)
        if is_applying:
            text = tr("Applying… answers in progress are finished first.")
        elif trouble:
            text = trouble
        else:
            text = note_of(draft, page)
            if has_changes and not fits:
                text = tr("The model would not load with this.") + " " + text
        self.note.setText(text)
        tint(self.note, colours(self.palette()).wrong if trouble else None)
