"""Qt's own style, Fusion, with check boxes that can be seen in the dark too. Thread: GUI.

Fusion draws the rim of a box in a darker shade of the window: on a dark window an empty box vanishes,
in pages as in menus. Used wherever Fusion is the desktop's style, or ours (`theme.py`).
"""

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QPainter, QPalette, QPen, QPolygonF
from PySide6.QtWidgets import QApplication, QProxyStyle, QStyle, QStyleOption, QWidget

_NAME = "fusion"


class FusionStyle(QProxyStyle):
    """Draws check boxes itself; all else is Fusion's."""

    def __init__(self) -> None:
        super().__init__(_NAME)

    def drawPrimitive(  # noqa: N802 - Qt's name
        self,
        element: QStyle.PrimitiveElement,
        option: QStyleOption,
        painter: QPainter,
        widget: QWidget | None = None,
    ) -> None:
        if element is QStyle.PrimitiveElement.PE_IndicatorCheckBox:
            _draw_box(option, painter)
        else:
            super().drawPrimitive(element, option, painter, widget)


def use_fusion(app: QApplication, *, is_forced: bool = False) -> None:
    """Puts `FusionStyle` in the place of Fusion, or of any other style where it is forced."""
    style = app.style()
    if not isinstance(style, FusionStyle) and (is_forced or style.name() == _NAME):
        app.setStyle(FusionStyle())


def _draw_box(option: QStyleOption, painter: QPainter) -> None:
    states, roles = QStyle.StateFlag, QPalette.ColorRole
    state, palette = option.state, option.palette
    is_enabled = bool(state & states.State_Enabled)
    group = QPalette.ColorGroup.Active if is_enabled else QPalette.ColorGroup.Disabled
    text = palette.color(group, roles.WindowText)
    rim = QPen(text, 1.2)
    if not state & states.State_HasFocus:
        colour = rim.color()
        colour.setAlpha(165 if is_enabled else 110)
        rim.setColor(colour)
    else:
        rim.setColor(palette.color(roles.Highlight))
    box = QRectF(option.rect).adjusted(1, 1, -1, -1)
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(rim)
    painter.setBrush(palette.color(group, roles.Base))
    painter.drawRoundedRect(box, 2, 2)
    if state & states.State_On:
        painter.setPen(
            QPen(text, 2, Qt.PenStyle.SolidLine, Qt.PenCapStyle.RoundCap, Qt.PenJoinStyle.RoundJoin)
        )
        painter.setBrush(Qt.BrushStyle.NoBrush)
        x, y, side = box.x(), box.y(), box.width()
        marks = ((0.22, 0.52), (0.42, 0.72), (0.8, 0.27))
        painter.drawPolyline(QPolygonF([QPointF(x + a * side, y + b * side) for a, b in marks]))
    elif state & states.State_NoChange:
        painter.fillRect(box.adjusted(3, 3, -3, -3), text)
    painter.restore()
