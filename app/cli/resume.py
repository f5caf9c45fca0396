"""`coolhead resume`: takes requests again, whoever or whatever has paused them."""

import argparse
from typing import Any

from app.cli.client import need_running
from app.core.paths import user_paths


def add_parser(verbs: Any) -> None:
    verbs.add_parser("resume", help="take requests again")


def run(args: argparse.Namespace) -> int:
    """Raises: NotRunning."""
    del args
    need_running(user_paths()).call("POST", "/admin/resume", {})
    print("New requests are taken.")
    return 0
