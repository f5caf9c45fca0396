"""How long a routing decision takes, beside a plain loop over rules and a router of regexes.

    python benchmarks/route.py [--json] [--busy] [--requests 20000] [--rules 10,100,1000,5000]

Requests carry 2 kB of text each, a quarter of them Chinese, with 0 to 5 keyword hits. "extracted" has
the features made before the clock starts; "decoded" starts from the bytes of the body. The two rivals
read the same rules over the first few hundred of the same requests, and have to agree with the table.
"""

import argparse
import contextlib
import gc
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from msgspec import structs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.core.router import Router
from app.core.router.features import RequestFeatures, extract
from app.core.router.rules import RoutingRules, Rule
from benchmarks.route_data import BODY_PATH, HEADERS, make_bodies, make_rules, without_text
from benchmarks.route_rivals import CachedRouter, LoopRouter, RegexRouter, agent_session

# What workers run at.
WORKER_NICE = 10


def measure(call: Callable[[int], object], count: int) -> dict[str, float]:
    """p50, p99 and the mean of `call(i)`, in microseconds."""
    times: list[int] = []
    clock = time.perf_counter_ns
    gc.collect()
    gc.disable()
    try:
        for at in range(count):
            start = clock()
            call(at)
            times.append(clock() - start)
    finally:
        gc.enable()
    times.sort()
    return {
        "p50_us": round(times[len(times) // 2] / 1000, 2),
        "p99_us": round(times[len(times) * 99 // 100] / 1000, 2),
        "mean_us": round(sum(times) / len(times) / 1000, 2),
    }


def table_figures(rules: Sequence[Rule], bodies: Sequence[bytes]) -> dict[str, Any]:
    """Each pass has a router and texts of its own, so that nothing is known from the one before."""
    start = time.perf_counter()
    router = Router(RoutingRules(tuple(rules)))
    compile_ms = (time.perf_counter() - start) * 1000
    features = [extract(BODY_PATH, HEADERS, body) for body in bodies]
    extracted = measure(lambda at: router.route(features[at]), len(features))
    fresh = Router(RoutingRules(tuple(rules)))
    decoded = measure(lambda at: fresh.route(extract(BODY_PATH, HEADERS, bodies[at])), len(bodies))
    return {"compile_ms": round(compile_ms, 1), "extracted": extracted, "decoded": decoded}


def rival_figures(
    rules: Sequence[Rule], features: Sequence[RequestFeatures], budget_s: float
) -> dict[str, Any]:
    table = Router(RoutingRules(tuple(rules)))
    found: dict[str, Any] = {}
    for name, rival in (("loop", LoopRouter(rules)), ("regexes", RegexRouter(rules))):
        count, agree, start = 0, 0, time.perf_counter()
        while count < len(features) and time.perf_counter() - start < budget_s:
            agree += rival.route(features[count]) == table.route(features[count]).rule
            count += 1
        figures = measure(lambda at: rival.route(features[at]), count)  # noqa: B023 - called at once
        found[name] = {**figures, "requests": count, "agrees": round(agree / count, 4)}
    return found


def session_figures(rules: Sequence[Rule]) -> dict[str, Any]:
    """An agent's session of 40 turns, as it is, and with a cache of whole decisions in front."""
    bodies = agent_session(random.Random(11))
    cached: list[CachedRouter] = []

    def fresh() -> tuple[Router, list[RequestFeatures]]:
        made = [extract(BODY_PATH, HEADERS, body) for body in bodies]
        return Router(RoutingRules(tuple(rules))), made

    def plain() -> dict[str, float]:
        router, features = fresh()
        return measure(lambda at: router.route(features[at]), len(features))

    def joined() -> dict[str, float]:
        router, features = fresh()
        one = [structs.replace(each, texts=(each.text,)) for each in features]
        return measure(lambda at: router.route(one[at]), len(one))

    def with_cache() -> dict[str, float]:
        router, features = fresh()
        cached.append(CachedRouter(router))
        return measure(lambda at: cached[-1].route(features[at]), len(features))

    # A session is short: each is played three times, from the beginning, and the quietest one counts.
    found = {
        name: min((play() for _ in range(3)), key=lambda figures: figures["mean_us"])
        for name, play in (
            ("as_it_is", plain),
            ("as_one_message_each_turn", joined),
            ("with_decision_cache", with_cache),
        )
    }
    hits, misses = cached[-1].hits, cached[-1].misses
    return {
        "requests": len(bodies),
        "longest_body_bytes": max(map(len, bodies)),
        **found,
        "decision_cache_hit_rate": round(hits / (hits + misses), 3),
    }


@contextlib.contextmanager
def busy_cores() -> Iterator[None]:
    """A process per core that never rests, at a worker's lowered priority."""
    spin = [sys.executable, "-c", "import time\nend=time.time()+300\nwhile time.time()<end: pass"]
    # Windows has classes of priority instead of niceness.
    lowered = getattr(psutil, "BELOW_NORMAL_PRIORITY_CLASS", WORKER_NICE)
    spinning = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        for process in spinning:
            psutil.Process(process.pid).nice(lowered)
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def busy_figures(rules: Sequence[Rule], bodies: Sequence[bytes]) -> dict[str, Any]:
    """The same decisions with nothing else to do, and beside a process that saturates every core."""
    idle = table_figures(rules, bodies)["extracted"]
    with busy_cores():
        busy = table_figures(rules, bodies)["extracted"]
    return {"idle": idle, "busy": busy, "p99_ratio": round(busy["p99_us"] / idle["p99_us"], 2)}


def run(requests: int, sizes: Sequence[int], rival_s: float) -> dict[str, Any]:
    bodies = make_bodies(requests, random.Random(7))
    features = [extract(BODY_PATH, HEADERS, body) for body in bodies]
    # Libraries are loaded and pages touched before anything is timed.
    table_figures(make_rules(50, random.Random(5)), bodies[:200])
    by_size: dict[str, Any] = {}
    for size in sizes:
        rules = make_rules(size, random.Random(3))
        by_size[str(size)] = {
            **table_figures(rules, bodies),
            "without_text_rules": table_figures(without_text(rules), bodies),
            "rivals": rival_figures(rules, features, rival_s),
        }
    most = make_rules(max(sizes), random.Random(3))
    return {
        "benchmark": "route",
        "python": platform.python_version(),
        "requests": requests,
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "rules": by_size,
        "agent_session": {
            "all_rules": session_figures(most),
            "without_text_rules": session_figures(without_text(most)),
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rules", default="10,100,1000,5000")
    parser.add_argument("--busy", action="store_true", help="also with every core saturated")
    parser.add_argument("--rival-seconds", type=float, default=3.0)
    args = parser.parse_args()
    sizes = [int(size) for size in args.rules.split(",")]
    report = run(args.requests, sizes, args.rival_seconds)
    if args.busy:
        rules = make_rules(max(sizes), random.Random(3))
        report["busy_cores"] = busy_figures(rules, make_bodies(args.requests, random.Random(7)))
    if args.json:
        print(json.dumps(report, indent=2))
        return 0
    print("microseconds: p50 / p99")
    print(
        f"{'rules':>6} {'extracted':>16} {'decoded':>16} {'no text rule':>16} {'loop':>18} {'regexes':>18}"
    )
    for size, figures in report["rules"].items():
        cells = [
            figures["extracted"],
            figures["decoded"],
            figures["without_text_rules"]["extracted"],
            figures["rivals"]["loop"],
            figures["rivals"]["regexes"],
        ]
        print(f"{size:>6} " + " ".join(f"{c['p50_us']:>8} /{c['p99_us']:>8}" for c in cells))
    for name, figures in report["agent_session"].items():
        print(f"agent's session, {name}: {json.dumps(figures)}")
    if args.busy:
        print(f"every core saturated: {json.dumps(report['busy_cores'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
