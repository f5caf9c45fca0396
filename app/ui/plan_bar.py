"""One memory as a stacked bar, drawn to scale: what is taken, what would be, what must stay free.

From the left: other programs, then the model (weights, KV cache, compute, prompt cache), then what is
free; the desktop's reserve stands at the right end. The line is what models may take at most; what
lies beyond it is red. The thin bar below is what the running worker really takes. The legend names
all of them, in as many rows as the width asks for. Thread: GUI.
"""

from dataclasses import dataclass, replace

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import (
    QBrush,
    QColor,
    QHelpEvent,
    QPainter,
    QPaintEvent,
    QPalette,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.core.models.sizes import size_text
from app.ui.i18n import tr
from app.ui.pricing import Bar
from app.ui.theme import Colours, colours

_HEAD, _BAR, _TAKEN, _LEGEND = 22, 30, 7, 20
_GAP = 3


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the bar, in bytes from its left end."""

    name: str
    start_bytes: int
    size_bytes: int
    colour: QColor
    is_pattern: bool = False

    @property
    def end_bytes(self) -> int:
        return self.start_bytes + self.size_bytes


def segments(bar: Bar, paint: Colours) -> tuple[Segment, ...]:
    """The stretches from left to right; the model's are the plan's figures, to the byte."""
    part = bar.part
    rest = part.compute_bytes + part.output_bytes + part.overhead_bytes
    kinds = (
        (tr("others"), bar.others_bytes, paint.others),
        (tr("weights"), part.weights_bytes, paint.weights),
        (tr("KV cache"), part.kv_bytes, paint.kv),
        (tr("compute"), rest, paint.compute),
        (tr("prompt cache"), part.cache_bytes, paint.cache),
    )
    found: list[Segment] = []
    at = 0
    for name, size, colour in kinds:
        if size > 0:
            found.append(Segment(name, at, size, colour))
        at += max(0, size)
    if bar.free_bytes:
        found.append(Segment(tr("free"), at, bar.free_bytes, paint.free))
    reserve_at = max(at + bar.free_bytes, bar.total_bytes - bar.reserve_bytes)
    if bar.reserve_bytes and reserve_at < bar.total_bytes:
        size = bar.total_bytes - reserve_at
        found.append(Segment(tr("reserve"), reserve_at, size, paint.reserve, True))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Key:
    """One entry of the legend, and its place: row and left end."""

    text: str
    colour: QColor
    is_pattern: bool = False
    is_line: bool = False
    is_thin: bool = False
    row: int = 0
    x: float = 0.0


class PlanBar(QWidget):
    """Shows a `Bar`; repainted only when it differs."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._bar: Bar | None = None
        self.times_painted = 0
        self._segments: tuple[Segment, ...] = ()
        self._rows = 1
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMouseTracking(True)

    @property
    def bar(self) -> Bar | None:
        return self._bar

    def show_bar(self, bar: Bar) -> None:
        if bar == self._bar:
            return
        had_taken = self._bar is not None and self._bar.taken_bytes is not None
        self._bar = bar
        self._segments = segments(bar, colours(self.palette()))
        self.setAccessibleName(bar.title)
        self.setAccessibleDescription(self._head(bar))
        if had_taken != (bar.taken_bytes is not None):
            self.updateGeometry()
        self._count_rows()
        self.update()

    def legend(self) -> tuple[str, ...]:
        """What the legend names, in its order."""
        return tuple(key.text for key in self._keys())

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        has_taken = self._bar is not None and self._bar.taken_bytes is not None
        taken = _TAKEN + _GAP if has_taken else 0
        return QSize(420, _HEAD + _BAR + taken + _LEGEND * self._rows)

    def minimumSizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(260, self.sizeHint().height())

    def resizeEvent(self, happened: QResizeEvent) -> None:  # noqa: N802 - Qt's name
        super().resizeEvent(happened)
        self._count_rows()

    def changeEvent(self, happened: QEvent) -> None:  # noqa: N802 - Qt's name
        if happened.type() is QEvent.Type.PaletteChange and self._bar is not None:
            self._segments = segments(self._bar, colours(self.palette()))
        super().changeEvent(happened)

    def paintEvent(self, asked: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        del asked
        bar = self._bar
        if bar is None:
            return
        self.times_painted += 1
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        paint = colours(self.palette())
        self._paint_head(painter, bar, paint)
        whole = QRectF(0.5, _HEAD + 0.5, self.width() - 1, _BAR - 1)
        painter.fillRect(whole, paint.free)
        for one in self._segments:
            box = self._box(one.start_bytes, one.end_bytes)
            painter.fillRect(box, one.colour)
            if one.is_pattern:
                painter.fillRect(box, QBrush(paint.line, Qt.BrushStyle.BDiagPattern))
        self._paint_wrong(painter, bar, paint)
        painter.setPen(QPen(paint.line, 1))
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.drawRect(whole)
        self._paint_cap(painter, bar, paint)
        top = _HEAD + _BAR + _GAP
        if bar.taken_bytes is not None:
            self._paint_taken(painter, bar, paint, top)
            top += _TAKEN + _GAP
        self._paint_legend(painter, top)
        painter.end()

    def event(self, happened: QEvent) -> bool:
        if isinstance(happened, QHelpEvent) and self._bar is not None:
            at = happened.pos().x() / max(1, self.width()) * self._scale_bytes()
            QToolTip.showText(happened.globalPos(), self._tip(at), self)
            return True
        return super().event(happened)

    def _scale_bytes(self) -> int:
        """What the whole width stands for; an overfull plan is drawn to its end."""
        assert self._bar is not None
        return max(
            1, self._bar.total_bytes, max((one.end_bytes for one in self._segments), default=1)
        )

    def _box(self, start_bytes: int, end_bytes: int) -> QRectF:
        per_byte = self.width() / self._scale_bytes()
        left, right = start_bytes * per_byte, end_bytes * per_byte
        return QRectF(left, _HEAD, right - left, _BAR)

    def _end_bytes(self, bar: Bar) -> int:
        return bar.others_bytes + bar.part.total_bytes

    def _head(self, bar: Bar) -> str:
        needed = bar.part.total_bytes
        head = tr("model") + f" {size_text(needed)}, " if needed else ""
        if bar.taken_bytes is not None:
            head += tr("taken") + f" {size_text(bar.taken_bytes)}, "
        if needed > bar.cap_bytes:
            return head + tr("too much by") + f" {size_text(needed - bar.cap_bytes)}"
        return head + tr("free") + f" {size_text(bar.free_bytes)}"

    def _tip(self, at_bytes: float) -> str:
        assert self._bar is not None
        lines = [self._bar.sentence] if self._bar.sentence else []
        for one in self._segments:
            mark = "▸ " if one.start_bytes <= at_bytes < one.end_bytes else "   "
            lines.append(f"{mark}{one.name}: {size_text(one.size_bytes)}")
        return "\n".join(lines)

    def _paint_head(self, painter: QPainter, bar: Bar, paint: Colours) -> None:
        row = QRectF(0, 0, self.width(), _HEAD - 4)
        font = painter.font()
        font.setBold(True)
        painter.setFont(font)
        painter.setPen(self.palette().color(QPalette.ColorRole.WindowText))
        title = f"{bar.title}, {size_text(bar.total_bytes)}"
        painter.drawText(row, Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter, title)
        font.setBold(False)
        painter.setFont(font)
        if not bar.fits or bar.part.total_bytes > bar.cap_bytes:
            painter.setPen(paint.wrong)
        align = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(row, align, self._head(bar))

    def _paint_wrong(self, painter: QPainter, bar: Bar, paint: Colours) -> None:
        limit, end = bar.others_bytes + bar.cap_bytes, self._end_bytes(bar)
        if end <= limit or not bar.part.total_bytes:
            return
        box = self._box(max(limit, bar.others_bytes), end)
        veil = QColor(paint.wrong)
        veil.setAlpha(205)
        painter.fillRect(box, veil)
        painter.fillRect(box, QBrush(QColor(255, 255, 255, 60), Qt.BrushStyle.FDiagPattern))

    def _paint_cap(self, painter: QPainter, bar: Bar, paint: Colours) -> None:
        x = self._box(0, bar.others_bytes + bar.cap_bytes).right()
        painter.setPen(QPen(paint.cap, 2))
        painter.drawLine(QPointF(x, _HEAD - 4), QPointF(x, _HEAD + _BAR + 2))

    def _paint_taken(self, painter: QPainter, bar: Bar, paint: Colours, top: float) -> None:
        assert bar.taken_bytes is not None
        box = self._box(bar.others_bytes, bar.others_bytes + bar.taken_bytes)
        painter.fillRect(QRectF(box.left(), top, box.width(), _TAKEN), paint.taken)

    def _keys(self) -> list[_Key]:
        """The legend's entries, each put into the first row that has room for it."""
        bar = self._bar
        if bar is None:
            return []
        paint, metrics = colours(self.palette()), self.fontMetrics()
        found = [
            _Key(f"{one.name} {size_text(one.size_bytes)}", one.colour, one.is_pattern)
            for one in self._segments
        ]
        limit = size_text(bar.cap_bytes)
        found.append(_Key(f"{tr('limit')} {limit}", paint.cap, is_line=True))
        if bar.taken_bytes is not None:
            taken = size_text(bar.taken_bytes)
            found.append(_Key(f"{tr('taken now')} {taken}", paint.taken, is_thin=True))
        placed, row, x = [], 0, 0.0
        for key in found:
            width = 13 + metrics.horizontalAdvance(key.text)
            if x and x + width > self.width():
                row, x = row + 1, 0.0
            placed.append(replace(key, row=row, x=x))
            x += width + 16
        return placed

    def _count_rows(self) -> None:
        rows = 1 + max((key.row for key in self._keys()), default=0)
        if rows != self._rows:
            self._rows = rows
            self.updateGeometry()

    def _paint_legend(self, painter: QPainter, top: float) -> None:
        line = colours(self.palette()).line
        for key in self._keys():
            y = top + key.row * _LEGEND
            swatch = QRectF(key.x + 0.5, y + 5.5, 9, 9)
            if key.is_line:
                painter.fillRect(QRectF(key.x + 4, y + 4, 2, 12), key.colour)
            elif key.is_thin:
                painter.fillRect(QRectF(key.x, y + 8, 10, 4), key.colour)
            else:
                painter.fillRect(swatch, key.colour)
                if key.is_pattern:
                    painter.fillRect(swatch, QBrush(line, Qt.BrushStyle.BDiagPattern))
                painter.setPen(QPen(line, 1))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawRect(swatch)
            painter.setPen(self.palette().color(QPalette.ColorRole.WindowText))
            place = QRectF(key.x + 13, y, self.width() - key.x - 13, _LEGEND)
            painter.drawText(place, Qt.AlignmentFlag.AlignVCenter, key.text)
