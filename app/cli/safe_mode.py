"""`coolhead safe-mode [leave]`: whether anything is held back after a bad end, and the way out of it."""

import argparse
from typing import Any

from app.cli.client import need_running
from app.core.paths import user_paths


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("safe-mode", help="what is held back after a bad end; leave it")
    parser.add_argument("step", nargs="?", choices=("status", "leave"), default="status")


def run(args: argparse.Namespace) -> int:
    """Raises: NotRunning."""
    running = need_running(user_paths())
    before = running.call("GET", "/admin/status")
    if args.step == "leave":
        running.call("POST", "/admin/safe-mode/leave", {})
        left = "Safe mode is left: models are loaded at full size again."
        print(left if before["is_safe_mode"] else "There is no safe mode to leave.")
    else:
        print(before["safe_mode_sentence"] or "Safe mode is off.")
    return 0
