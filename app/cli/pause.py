"""`coolhead pause`: the port stays open, new requests are answered with 503 until `coolhead resume`."""

import argparse
from typing import Any

from app.cli.client import need_running
from app.core.paths import user_paths


def add_parser(verbs: Any) -> None:
    verbs.add_parser("pause", help="take no new requests")


def run(args: argparse.Namespace) -> int:
    """Raises: NotRunning."""
    del args
    need_running(user_paths()).call("POST", "/admin/pause", {"paused": True})
    print("Paused: new requests are answered with 503 until `coolhead resume`.")
    return 0
