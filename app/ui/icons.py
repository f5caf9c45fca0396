"""The tray icons, painted: one shape and one colour for each state. Thread: GUI.

Painted and not shipped as files, so that they are sharp at any scale factor and on light and dark
panels alike: a light rim stands around each shape.
"""

from collections.abc import Callable

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QIcon, QPainter, QPen, QPixmap, QPolygonF

from app.ui.view_state import IconKind

_SIZES = (16, 20, 22, 24, 32, 44, 48, 64, 96, 128)
_FIELD = 64.0
"""Shapes are drawn in a field of this side and scaled."""

_RIM = QColor(255, 255, 255, 235)
COLOURS: dict[IconKind, QColor] = {
    IconKind.STOPPED: QColor("#7d8590"),
    IconKind.STARTING: QColor("#3b82f6"),
    IconKind.READY: QColor("#1f9d55"),
    IconKind.BUSY: QColor("#0b6bcb"),
    IconKind.PAUSED: QColor("#8a6d1d"),
    IconKind.PRESSURE: QColor("#e8590c"),
    IconKind.FAILED: QColor("#c92a2a"),
}


def state_icon(kind: IconKind) -> QIcon:
    """The icon of a state, in every size that panels ask for; made once."""
    if kind not in _made:
        icon = QIcon()
        for size in _SIZES:
            icon.addPixmap(_pixmap(kind, size))
        _made[kind] = icon
    return _made[kind]


_made: dict[IconKind, QIcon] = {}


def _pixmap(kind: IconKind, size: int) -> QPixmap:
    pixmap = QPixmap(size, size)
    pixmap.fill(Qt.GlobalColor.transparent)
    painter = QPainter(pixmap)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.scale(size / _FIELD, size / _FIELD)
    _SHAPES[kind](painter, COLOURS[kind])
    painter.end()
    return pixmap


def _disc(painter: QPainter, colour: QColor) -> None:
    painter.setPen(QPen(_RIM, 4))
    painter.setBrush(colour)
    painter.drawEllipse(QRectF(4, 4, 56, 56))


def _line_pen(width: float = 8) -> QPen:
    return QPen(
        QColor("white"),
        width,
        Qt.PenStyle.SolidLine,
        Qt.PenCapStyle.RoundCap,
        Qt.PenJoinStyle.RoundJoin,
    )


def _stopped(painter: QPainter, colour: QColor) -> None:
    square = QRectF(11, 11, 42, 42)
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(_RIM, 13))
    painter.drawRoundedRect(square, 8, 8)
    painter.setPen(QPen(colour, 9))
    painter.drawRoundedRect(square, 8, 8)


def _starting(painter: QPainter, colour: QColor) -> None:
    ring = QRectF(10, 10, 44, 44)
    cap = Qt.PenCapStyle.RoundCap
    for pen_colour, width in ((_RIM, 16), (colour, 10)):
        painter.setPen(QPen(pen_colour, width, Qt.PenStyle.SolidLine, cap))
        painter.drawArc(ring, 90 * 16, 270 * 16)


def _ready(painter: QPainter, colour: QColor) -> None:
    _disc(painter, colour)
    painter.setPen(_line_pen())
    painter.drawPolyline(QPolygonF([QPointF(19, 33), QPointF(28, 43), QPointF(46, 22)]))


def _busy(painter: QPainter, colour: QColor) -> None:
    _disc(painter, colour)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor("white"))
    for x in (18.0, 32.0, 46.0):
        painter.drawEllipse(QPointF(x, 32), 5.5, 5.5)


def _paused(painter: QPainter, colour: QColor) -> None:
    _disc(painter, colour)
    painter.setPen(_line_pen())
    painter.drawLine(QPointF(25, 22), QPointF(25, 42))
    painter.drawLine(QPointF(39, 22), QPointF(39, 42))


def _pressure(painter: QPainter, colour: QColor) -> None:
    triangle = QPolygonF([QPointF(32, 7), QPointF(58, 56), QPointF(6, 56)])
    join = Qt.PenJoinStyle.RoundJoin
    painter.setBrush(colour)
    painter.setPen(QPen(_RIM, 9, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, join))
    painter.drawPolygon(triangle)
    painter.setPen(QPen(colour, 3, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, join))
    painter.drawPolygon(triangle)
    painter.setPen(_line_pen())
    painter.drawLine(QPointF(32, 25), QPointF(32, 38))
    painter.drawPoint(QPointF(32, 49))


def _failed(painter: QPainter, colour: QColor) -> None:
    _disc(painter, colour)
    painter.setPen(_line_pen())
    painter.drawLine(QPointF(22, 22), QPointF(42, 42))
    painter.drawLine(QPointF(42, 22), QPointF(22, 42))


_SHAPES: dict[IconKind, Callable[[QPainter, QColor], None]] = {
    IconKind.STOPPED: _stopped,
    IconKind.STARTING: _starting,
    IconKind.READY: _ready,
    IconKind.BUSY: _busy,
    IconKind.PAUSED: _paused,
    IconKind.PRESSURE: _pressure,
    IconKind.FAILED: _failed,
}
