"""A small line of the last values, without axes. Thread: GUI."""

from collections import deque

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QPainter, QPaintEvent, QPalette, QPen, QPolygonF
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.ui.theme import colours

VALUES_KEPT = 240


class Sparkline(QWidget):
    """Shows its last values from left to right; the newest stands at the right end.

    Args:
        title: what the values are.
        unit: behind the newest value, which is written out.
    """

    def __init__(self, title: str, unit: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._title = title
        self._unit = unit
        self._values: deque[float] = deque(maxlen=VALUES_KEPT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName(title)

    @property
    def values(self) -> tuple[float, ...]:
        return tuple(self._values)

    def add(self, value: float) -> None:
        self._values.append(value)
        self.update()

    def sizeHint(self) -> QSize:  # noqa: N802 - Qt's name
        return QSize(200, 64)

    def paintEvent(self, asked: QPaintEvent) -> None:  # noqa: N802 - Qt's name
        del asked
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        paint = colours(self.palette())
        text = QRectF(0, 0, self.width(), 18)
        field = QRectF(0.5, 20.5, self.width() - 1, self.height() - 21)
        painter.setPen(self.palette().color(QPalette.ColorRole.WindowText))
        painter.drawText(text, Qt.AlignmentFlag.AlignLeft, self._title)
        if self._values:
            newest = f"{self._values[-1]:.1f} {self._unit}"
            painter.drawText(text, Qt.AlignmentFlag.AlignRight, newest)
        painter.setPen(QPen(paint.line, 1))
        painter.setBrush(paint.free)
        painter.drawRect(field)
        if len(self._values) > 1:
            self._paint_line(painter, field, paint.weights)
        painter.end()

    def _paint_line(self, painter: QPainter, field: QRectF, colour: QColor) -> None:
        top = max(*self._values, 1e-9)
        step = field.width() / (VALUES_KEPT - 1)
        left = field.right() - step * (len(self._values) - 1)
        height = field.height() - 4
        points = [
            QPointF(left + index * step, field.bottom() - 2 - value / top * height)
            for index, value in enumerate(self._values)
        ]
        floor = [QPointF(field.right(), field.bottom()), QPointF(left, field.bottom())]
        fill = QColor(colour)
        fill.setAlpha(60)
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(fill)
        painter.drawPolygon(QPolygonF([*points, *floor]))
        painter.setPen(QPen(colour, 1.6))
        painter.drawPolyline(QPolygonF(points))
