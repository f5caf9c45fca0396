"""CPU that a router spends on each piece of a stream: ours beside nginx, in one run.

    python benchmarks/streams.py --json [--streams 8] [--rate 100] [--seconds 6]

A worker streams events at a steady rate over several connections at once, through each party in turn,
twice. CPU time is the process's own, user and system. `more_than_nginx_us` is ours less nginx's.
"""

import argparse
import asyncio
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Party, nginx_party, percentile, python_party, report


async def read_stream(party: Party, body: bytes, gaps_s: list[float]) -> int:
    """Reads one stream to its end; returns the events that came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", party.port)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (party.port, len(body), body)
    )
    events, last = 0, 0.0
    while True:
        data = await reader.read(65536)
        if not data:
            sys.exit(f"{party.name} ended a stream early")
        now = time.perf_counter()
        if last:
            gaps_s.append(now - last)
        last = now
        events += data.count(b"data: {")
        if b"[DONE]" in data:
            break
    writer.close()
    return events


async def load(party: Party, streams: int, rate: int, count: int) -> dict[str, float]:
    messages = b'[{"role":"user","content":"Count."}]'
    body = b'{"model":"m","messages":%b,"stream":true,"n":%d,"rate":%d}' % (messages, count, rate)
    gaps_s: list[float] = []
    before_s = party.cpu_s()
    events = sum(await asyncio.gather(*(read_stream(party, body, gaps_s) for _ in range(streams))))
    spent_s = party.cpu_s() - before_s
    return {
        "events": events,
        "cpu_us_per_event": spent_s / events * 1e6,
        "gap_p50_ms": percentile(gaps_s, 50) * 1000,
        "gap_p99_ms": percentile(gaps_s, 99) * 1000,
    }


def measure(streams: int, rate: int, seconds: float) -> dict[str, object]:
    count = max(1, int(rate * seconds))
    with ExitStack() as stack:
        worker = python_party(stack, "direct", "hop_worker.py")
        parties = [python_party(stack, "coolhead", "hop_routed.py", str(worker.port))]
        nginx = nginx_party(stack, worker.port)
        if nginx is not None:
            parties.append(nginx)
        found: dict[str, list[dict[str, float]]] = {party.name: [] for party in parties}
        for party in parties:
            asyncio.run(load(party, streams, rate, rate))
        for _ in range(2):
            for party in parties:
                found[party.name].append(asyncio.run(load(party, streams, rate, count)))
    result: dict[str, object] = {"streams": streams, "rate_per_s": rate}
    cpu_us: dict[str, float] = {}
    for name, runs in found.items():
        cpu_us[name] = sum(run["cpu_us_per_event"] for run in runs) / len(runs)
        result[name] = {key: round(sum(run[key] for run in runs) / len(runs), 3) for key in runs[0]}
    if "nginx" in cpu_us:
        result["more_than_nginx_us"] = round(cpu_us["coolhead"] - cpu_us["nginx"], 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    report(measure(options.streams, options.rate, options.seconds), as_json=options.json)


if __name__ == "__main__":
    main()
