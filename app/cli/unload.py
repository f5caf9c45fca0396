"""`coolhead unload MODEL`: takes a model out of memory once its requests are answered."""

import argparse
import time
from typing import Any

from app.cli.client import RunningApp, need_running
from app.core.errors import CoolheadError
from app.core.paths import user_paths

WAIT_S = 60.0
GONE = {"unloaded", "failed"}


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("unload", help="take a model out of memory")
    parser.add_argument("model", help="as `coolhead status` names it")


def run(args: argparse.Namespace) -> int:
    """0 once it is gone, or is to go when its requests are answered.

    Raises:
        CoolheadError: when it is not loaded.
    """
    running = need_running(user_paths())
    loaded = _loaded(running)
    if args.model not in loaded:
        names = f"Loaded: {', '.join(loaded)}." if loaded else "No model is."
        raise CoolheadError(f"{args.model} is not loaded. {names}")
    running.call("POST", "/admin/unload", {"model": args.model})
    deadline = time.monotonic() + WAIT_S
    while args.model in _loaded(running):
        if time.monotonic() > deadline:
            print(f"{args.model} still answers; it is unloaded once that is done.")
            return 0
        time.sleep(0.1)
    print(f"{args.model} is unloaded.")
    return 0


def _loaded(running: RunningApp) -> list[str]:
    workers = running.call("GET", "/admin/status")["workers"]
    return [worker["model_id"] for worker in workers if worker["state"] not in GONE]
