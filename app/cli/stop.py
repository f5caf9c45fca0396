"""`coolhead stop`: ends the running Coolhead and waits until it, its guard and its workers are gone."""

import argparse
import time
from typing import Any

import psutil

from app.cli.client import find_running
from app.core.errors import CoolheadError
from app.core.paths import user_paths

WAIT_S = 30.0


def add_parser(verbs: Any) -> None:
    verbs.add_parser("stop", help="stop the running Coolhead")


def run(args: argparse.Namespace) -> int:
    """Raises: CoolheadError when it does not end within 30 s."""
    del args
    running = find_running(user_paths())
    if running is None:
        print("No Coolhead is running.")
        return 0
    try:
        process = psutil.Process(running.pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        print("No Coolhead is running.")
        return 0
    started = time.monotonic()
    running.call("POST", "/admin/quit", {})
    while (alive := [process for process in family if _runs(process)]) and (
        time.monotonic() - started < WAIT_S
    ):
        time.sleep(0.02)
    if alive:
        pids = ", ".join(str(process.pid) for process in alive)
        raise CoolheadError(
            f"Asked Coolhead to stop {WAIT_S:g} s ago, but process {pids} still runs."
        )
    print(f"Stopped in {time.monotonic() - started:.1f} s.")
    return 0


def _runs(process: psutil.Process) -> bool:
    """Whether it still does anything; one that only waits to be reaped by its parent does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
