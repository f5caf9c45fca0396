"""`coolhead events [--json]`: what the guard and the workers did, from the state folder."""

import argparse
import datetime as dt
import json
from typing import Any

from app.core.event_log import read_events
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
    subject = event.get("model_id") or ""
    words = event.get("sentence") or event.get("text") or event.get("reason") or ""
    state = event.get("state") or event.get("step") or event.get("cause") or ""
    parts = [event["event"], subject, str(state), words]
    return ": ".join(part for part in parts if part)
