"""The tray on a real display over a core that only pretends: `python -m tests.ui.stand_in_program DIR`.

Writes into DIR each command that the core got (`commands`, one a line) and, ten times a second, where
the entries of the open menu and the buttons of the open windows are (`seen.json`), for the mouse.
"""

import dataclasses
import faulthandler
import json
import logging
import sys
import time
from pathlib import Path

from PySide6.QtCore import QPoint, QTimer
from PySide6.QtWidgets import QAbstractButton, QApplication, QMenu, QWidget

from app.core.events import Notice
from app.core.lifecycle import AppState
from app.core.paths import Paths
from app.ui.application import run_tray
from app.ui.fields import NumberField
from app.ui.panel import Panel
from tests.ui import imagined
from tests.ui.stand_in_core import StandInCore


def _centre(widget: QWidget, middle: QPoint) -> list[int]:
    place = widget.mapToGlobal(middle)
    return [place.x(), place.y()]


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
    return {"menu": menu, "checked": checked, "windows": windows, "fields": _fields()}


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


def main(folder: Path) -> int:
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    home = folder / "home"
    paths = Paths(home / "config", home / "state", home / "data", home / "logs")
    paths.prepare()
    snapshot = dataclasses.replace(
        imagined.snapshot(folder / "models"), state=AppState.STOPPED, endpoint=""
    )
    core = StandInCore(snapshot).start()
    app = QApplication(["coolhead"])
    written = 0

    def write() -> None:
        nonlocal written
        with (folder / "commands").open("a") as out:
            for command in core.commands[written:]:
                out.write(f"{command}\n")
                written += 1
        scratch = folder / "seen.new"
        scratch.write_text(json.dumps(_seen()))
        scratch.replace(folder / "seen.json")

    def after_start() -> None:
        if "--notice" in sys.argv:
            core.publish(Notice("test", "The model was stopped", "0.8 GiB of 16 GiB were left."))
        if "--stall" in sys.argv:
            time.sleep(3.5)
        if "--raise" in sys.argv:
            raise RuntimeError("a slot failed on purpose")

    timer = QTimer()
    timer.timeout.connect(write)
    timer.start(100)
    QTimer.singleShot(500, after_start)
    try:
        code = run_tray(
            core.handle,
            paths,
            is_core_alive=lambda: core.is_alive,
            probe=lambda: imagined.machine(16, 8),
        )
        write()
    finally:
        timer.stop()
        core.stop()
        del app
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
