"""From a move of the context slider to the page being painted: `python -m benchmarks.panel --json`.

Off screen, over a 7B model's header on an imagined machine with one GPU. Two figures: the move itself
(reprice and repaint, the bar of 16 ms), and the search for what would fit, which waits until the hand
rests.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")

from PySide6.QtWidgets import QApplication

from app.core.paths import HOME_VARIABLE, user_paths
from app.ui.activity import ActivityLog
from app.ui.bridge import Bridge
from app.ui.fields import NumberField
from app.ui.panel import Panel
from app.ui.plan_bar import PlanBar
from tests.ui import imagined
from tests.ui.stand_in_core import StandInCore

BAR_MS = 16.0


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def measure(moves: int, folder: Path) -> dict[str, float]:
    """Moves the slider over its whole length and times each move to the end of its repaint."""
    app = QApplication.instance() or QApplication(["benchmark"])
    core = StandInCore(imagined.snapshot(folder)).start()
    bridge = Bridge(core.handle)
    paths = user_paths({HOME_VARIABLE: str(folder)})
    panel = Panel(bridge, ActivityLog(), paths, lambda: imagined.machine(16, 8))
    try:
        panel.open_page("Memory")
        deadline_s = time.monotonic() + 20
        while panel.memory.priced is None and time.monotonic() < deadline_s:
            app.processEvents()
        field = panel.memory.form.fields["model.context_tokens"]
        assert isinstance(field, NumberField)
        bar = panel.memory.findChildren(PlanBar)[-1]
        painted = bar.times_painted
        took_ms: list[float] = []
        cpu_ms: list[float] = []
        for number in range(moves):
            position = number * field.scale.positions // moves
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            field.slider.setValue(position)
            app.processEvents()
            took_ms.append((time.perf_counter() - began_s) * 1000)
            cpu_ms.append((time.thread_time() - began_cpu_s) * 1000)
        assert bar.times_painted - painted > moves * 0.9, "moves that were not painted"
        searched_ms: list[float] = []
        field.slider.setValue(field.scale.positions)
        for _ in range(5):
            began_s = time.perf_counter()
            panel.memory.search()
            searched_ms.append((time.perf_counter() - began_s) * 1000)
    finally:
        panel.close()
        bridge.close()
        core.stop()
    return {
        "moves": moves,
        "move_p50_ms": round(statistics.median(took_ms), 2),
        "move_p95_ms": round(_p95(took_ms), 2),
        "move_max_ms": round(max(took_ms), 2),
        "move_cpu_p95_ms": round(_p95(cpu_ms), 2),
        "search_p50_ms": round(statistics.median(searched_ms), 2),
        "bar_ms": BAR_MS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="slider move to repaint")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--moves", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.moves, Path(folder))
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:14} {value:g}")
    return 0 if found["move_p95_ms"] < BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
