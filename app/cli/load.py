"""`coolhead load MODEL`: loads an installed model into memory, as if its first request had come."""

import argparse
import sys
from typing import Any

from app.cli.client import need_running
from app.core.errors import CoolheadError
from app.core.paths import user_paths

LOAD_LIMIT_S = 7200.0
"""The longest that the setting for a load allows; the app itself gives up sooner."""
DOES_NOT_FIT = 3


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("load", help="load a model into memory")
    parser.add_argument("model", help="as `coolhead models list` names it")


def run(args: argparse.Namespace) -> int:
    """0 once it is ready, 3 when it does not fit. Raises: CoolheadError, whatever else stopped it."""
    running = need_running(user_paths())
    try:
        running.call("POST", "/admin/load", {"model": args.model}, LOAD_LIMIT_S)
    except CoolheadError as error:
        if error.details.get("code") != "does_not_fit":
            raise
        print(error.message, file=sys.stderr)
        return DOES_NOT_FIT
    for worker in running.call("GET", "/admin/status")["workers"]:
        if worker["model_id"] == args.model:
            slots = "1 slot" if worker["slots"] == 1 else f"each of {worker['slots']} slots"
            print(f"{args.model} is loaded: {worker['context_tokens']:,} tokens for {slots}.")
    return 0
