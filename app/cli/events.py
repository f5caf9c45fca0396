"""`coolhead events [--json]`: what the guard and the workers did, from the state folder."""

import argparse
import datetime as dt
import json
from typing import Any

from app.core.event_log import read_events
from app.core.lifecycle import PressureLevel
from app.core.paths import user_paths


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("events", help="what the guard and the workers did")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--limit", type=int, default=50, metavar="N", help="the last N (default 50)"
    )


def run(args: argparse.Namespace) -> int:
    events = read_events(user_paths().events_file, max(args.limit, 1))
    if args.json:
        print(json.dumps(events, indent=2))
        return 0
    if not events:
        print("Nothing has happened yet.")
    for event in events:
        when = dt.datetime.fromtimestamp(event["at"], tz=dt.UTC).astimezone()
        print(f"{when:%Y-%m-%d %H:%M:%S}  {_sentence(event)}")
    return 0


def _sentence(event: dict[str, Any]) -> str:
    """The event in words; its name where it is of a later version."""
    model = event.get("model_id") or ""
    words = event.get("sentence") or event.get("text") or event.get("reason") or ""
    match event["event"]:
        case "WorkerStateChanged":
            head = f"{model} is {event['state']}"
        case "WorkerExited":
            head = f"{model} ended ({event['cause']})"
        case "StepTaken":
            head = f"guard, {event['step'].replace('_', ' ')}" + (f" ({model})" if model else "")
        case "PressureChanged":
            head = f"memory pressure is {PressureLevel(event['level']).name.lower()}"
        case "AppStateChanged":
            head = f"Coolhead is {event['state']}"
        case "Notice":
            head = f"told you: {event['title']}"
        case "SettingsChanged":
            head, words = "settings changed", ", ".join(event["keys"])
        case "RoutesReloaded":
            head = f"routing rules read again: {event['rules']}"
        case "GuardChanged":
            head, words = words, ""
        case name:
            head = name
    return f"{head}: {words}" if words else head
