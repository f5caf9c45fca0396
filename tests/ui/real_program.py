"""The whole app with its tray, as `coolhead` starts it: `python -m tests.ui.real_program DIR`.

Adds `seen.json` in DIR, so that a test's mouse knows where things are. Once a file `stall` appears there,
the GUI thread sleeps for as many seconds as it says, and then a slot of its fails.
"""

import sys
import time
from pathlib import Path

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication

from app.runner import run_app
from tests.ui.seen import write_seen


def main(folder: Path) -> int:
    app = QApplication(["coolhead"])
    timer = QTimer()
    timer.timeout.connect(lambda: write_seen(folder))
    timer.timeout.connect(lambda: _stall_once(folder))
    timer.start(100)
    try:
        return run_app(is_headless=False, port=0, ends_with_stdin=False)
    finally:
        timer.stop()
        del app


def _stall_once(folder: Path) -> None:
    asked = folder / "stall"
    if not asked.exists():
        return
    seconds = float(asked.read_text())
    asked.rename(folder / "stalled")
    time.sleep(seconds)
    (folder / "stall_over").touch()
    raise RuntimeError("a slot failed on purpose")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
