"""What is on the screen, for the mouse and the eyes of the tests on a real X server.

The entries of the open menu and the buttons of the open windows with their places, the sliders of the
memory page, and the figures of its bars.
"""

import dataclasses
import json
from pathlib import Path

from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QAbstractButton, QApplication, QMenu, QWidget

from app.ui.fields import NumberField
from app.ui.panel import Panel


def _centre(widget: QWidget, middle: QPoint) -> list[int]:
    place = widget.mapToGlobal(middle)
    return [place.x(), place.y()]


def write_seen(folder: Path) -> None:
    """Replaces `seen.json` in one rename. Thread: GUI."""
    scratch = folder / "seen.new"
    scratch.write_text(json.dumps(_seen()))
    scratch.replace(folder / "seen.json")


def _seen() -> dict[str, object]:
    menu: dict[str, list[int]] = {}
    checked: list[str] = []
    windows: dict[str, dict[str, list[int]]] = {}
    for top in QApplication.topLevelWidgets():
        if not top.isVisible():
            continue
        if isinstance(top, QMenu):
            for action in top.actions():
                if action.text():
                    menu[action.text()] = _centre(top, top.actionGeometry(action).center())
                if action.isChecked():
                    checked.append(action.text())
        elif top.isWindow():
            windows[type(top).__name__] = {
                button.text(): _centre(button, button.rect().center())
                for button in top.findChildren(QAbstractButton)
                if button.isVisible() and button.text()
            }
    return {
        "menu": menu,
        "checked": checked,
        "windows": windows,
        "fields": _fields(),
        "bars": _bars(),
    }


def _fields() -> dict[str, object]:
    """Where the sliders' handles are, where their ends are, and what stands below them."""
    found: dict[str, object] = {}
    for top in QApplication.topLevelWidgets():
        if not isinstance(top, Panel) or not top.isVisible():
            continue
        for key, one in top.memory.form.fields.items():
            if isinstance(one, NumberField) and one.slider.isVisible():
                rect = one.slider.rect()
                share = one.slider.value() / max(1, one.slider.maximum())
                x = 6 + round((rect.width() - 12) * share)
                found[key] = {
                    "handle": _centre(one.slider, QPoint(x, rect.center().y())),
                    "left": _centre(one.slider, QPoint(0, rect.center().y())),
                    "right": _centre(one.slider, QPoint(rect.right(), rect.center().y())),
                    "text": one.number.text(),
                    "hint": one.hint.text(),
                }
        priced = top.memory.priced
        found["fits"] = priced.fits if priced is not None else None
    return found


def _bars() -> dict[str, object]:
    """The figures of each bar, by device."""
    found: dict[str, object] = {}
    for top in QApplication.topLevelWidgets():
        if isinstance(top, Panel) and top.memory.priced is not None:
            for bar in top.memory.priced.bars:
                part = dataclasses.asdict(bar.part)
                found[bar.device] = part | {"taken_bytes": bar.taken_bytes}
    return found
