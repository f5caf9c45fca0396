"""The tray on a real display over a core that only pretends: `python -m tests.ui.stand_in_program DIR`.

Writes into DIR each command that the core got (`commands`, one a line) and, ten times a second, where
the entries of the open menu and the buttons of the open windows are (`seen.json`), for the mouse.
"""

import dataclasses
import faulthandler
import logging
import sys
import time
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from app.core.events import Notice
from app.core.lifecycle import AppState
from app.core.paths import Paths
from app.ui.application import run_tray
from tests.ui import imagined
from tests.ui.seen import write_seen
from tests.ui.stand_in_core import StandInCore


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
        write_seen(folder)

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
