"""`coolhead status [--json]`: what runs, where, with which processes and how much memory."""

import argparse
import json
from typing import Any

from app.cli.client import find_running
from app.cli.text import size, table
from app.core.paths import user_paths


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("status", help="what is running, with its memory")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """0 while a Coolhead runs, 1 when none does."""
    running = find_running(user_paths())
    if running is None:
        print(json.dumps({"state": "not running"}) if args.json else "No Coolhead is running.")
        return 1
    status = running.call("GET", "/admin/status")
    if args.json:
        print(json.dumps(status, indent=2))
        return 0
    rows = [
        ("endpoint", status["endpoint"] or "closed"),
        ("state", status["state"] + (f" ({status['reason']})" if status["reason"] else "")),
        ("processes", f"app {status['pid']}, guard {status['guard_pid']}"),
        ("kernel cap", status["cap_kind"]),
        ("requests", f"{status['in_flight']} in flight, {status['queued']} waiting"),
        (
            "available RAM",
            f"{size(status['ram_available_bytes'])} of {size(status['ram_total_bytes'])}",
        ),
    ]
    print(table(rows))
    for sentence in filter(None, (status["safe_mode_sentence"], status["pause_sentence"])):
        print(f"\n{sentence}")
    for worker in status["workers"]:
        print(f"\n{worker['model_id']}: {_state(worker)}")
        if worker["pid"]:
            print(table(_worker_rows(worker), indent="  "))
    for problem in status["problems"]:
        print(f"\nnote: {problem}")
    return 0


def _state(worker: dict[str, Any]) -> str:
    reason = worker["reason"]
    return f"{worker['state']} ({reason})" if reason else str(worker["state"])


def _worker_rows(worker: dict[str, Any]) -> list[tuple[str, str]]:
    slots = "one slot" if worker["slots"] == 1 else f"each of {worker['slots']} slots"
    own = f"{size(worker['own_bytes'])} without the mapped weights"
    return [
        ("process", str(worker["pid"])),
        ("engine", worker["engine"]),
        ("context", f"{worker['context_tokens']:,} tokens for {slots}"),
        ("planned", _sizes(worker["planned_bytes"])),
        ("taken", _sizes(worker["taken_bytes"])),
        ("guard's cap", f"{size(worker['cap_bytes'])}; taken of it: {own}"),
        ("kernel's cap", f"{size(worker['kernel_limit_bytes'])} by {worker['cap_kind']}"),
    ]


def _sizes(by_device: dict[str, int]) -> str:
    return ", ".join(f"{device} {size(count)}" for device, count in by_device.items())
