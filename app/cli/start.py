"""`coolhead start`: opens the endpoint of a Coolhead that was stopped in its tray."""

import argparse
from typing import Any

from app.cli.client import need_running
from app.core.paths import user_paths


def add_parser(verbs: Any) -> None:
    verbs.add_parser("start", help="open the endpoint of a stopped Coolhead again")


def run(args: argparse.Namespace) -> int:
    """Raises: NotRunning, or EndpointError's words when the port cannot be opened."""
    del args
    running = need_running(user_paths())
    running.call("POST", "/admin/start", {})
    print(f"Serves at {running.call('GET', '/admin/status')['endpoint']}")
    return 0
