"""What the guard holds: overshoot, reaction, swap, its own cost, and the deaths it must survive.

    python benchmarks/guard.py [--json] [--runs 20] [--seconds 20] [--only overshoot reaction ...]

A real guard, real kernel caps, and `tests/fakes/hog.py` in the worker's place: bounded to 1.5 GiB and
always under a cap of its own. Linux only. Rows that this machine cannot show say so in "skipped".
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import guard_calm, guard_ends, guard_kills

Row = dict[str, Any]
Bench = Callable[[int, float], Awaitable[Row]]

ROWS: dict[str, Bench] = {
    "overshoot": guard_kills.overshoot,
    "reaction": guard_kills.reaction,
    "swap": guard_kills.swap,
    "thrash": guard_kills.thrash,
    "desktop": guard_kills.desktop,
    "cadence": guard_calm.cadence,
    "lateness": guard_calm.lateness,
    "false_kills": guard_calm.false_kills,
    "deaths": guard_ends.deaths,
    "causes": guard_ends.causes,
}


async def run(only: list[str], runs: int, seconds: float) -> Row:
    rows: Row = {
        "machine": {
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
        }
    }
    for name in only:
        try:
            rows[name] = await ROWS[name](runs, seconds)
        except Exception as error:  # noqa: BLE001 - one row that fails must not cost the others
            rows[name] = {"failed": f"{type(error).__name__}: {error}"}
        if not sys.stdout.isatty():
            print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0, help="for rows that measure a time")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    arguments = parser.parse_args()
    if sys.platform != "linux":
        print("The hogs and counters of this benchmark are Linux's.", file=sys.stderr)
        return 1
    rows = asyncio.run(run(arguments.only, arguments.runs, arguments.seconds))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return 0
    for name, row in rows.items():
        print(name)
        for key, value in row.items():
            print(f"  {key:32} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
