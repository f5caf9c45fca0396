"""Latency that a proxy adds to one request: ours, nginx, and starlette with httpx2, in one interleaved run.

    python benchmarks/hop.py --json [--requests 2000] [--app-port PORT --app-model NAME]

One client asks one request at a time over kept connections, a batch of each party in turn, so that a
busy moment of the machine falls on all. `coolhead` is the whole endpoint with routing, admission and
accounting, `coolhead_bare` the server, worker client and splice alone. `added` is a party's p50 less
that of the worker asked directly; `ratio_to_nginx` is our added over nginx's. `cpu_us` is processor time
a request, user and system, which a busy machine distorts less than it does latency. With `--app-port` a
running Coolhead is measured beside them: its own model answers, so that only its p50 less that model's
time says something.
"""

import argparse
import socket
import sys
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Party, nginx_party, percentile, python_party, report

PROMPT = "The quick brown fox jumps over the lazy dog. " * 44
"""2 kB, what a first message with a short system prompt weighs."""


class Asker:
    """One kept connection to a party."""

    def __init__(self, party: Party, model: str = "m") -> None:
        self.party = party
        body = b'{"model":"%b","messages":[{"role":"user","content":"%b"}],"max_tokens":90}' % (
            model.encode(),
            PROMPT.encode(),
        )
        self.request = (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: bench\r\n"
            b"Accept: application/json\r\nAuthorization: Bearer x\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (party.port, len(body), body)
        )
        self.socket = socket.create_connection(("127.0.0.1", party.port), timeout=20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.times_s: list[float] = []

    def ask(self) -> None:
        start = time.perf_counter()
        self.socket.sendall(self.request)
        data = self.socket.recv(65536)
        while not self.is_whole(data):
            more = self.socket.recv(65536)
            if not more:
                sys.exit(f"{self.party.name} closed the connection after {data!r}")
            data += more
        self.times_s.append(time.perf_counter() - start)
        if not data.startswith(b"HTTP/1.1 200"):
            sys.exit(f"{self.party.name} answered {data[:300]!r}")

    @staticmethod
    def is_whole(data: bytes) -> bool:
        cut = data.find(b"\r\n\r\n")
        if cut < 0:
            return False
        head = data[:cut].lower()
        at = head.find(b"content-length:")
        if at < 0:
            return data.endswith(b"\r\n0\r\n\r\n")
        return len(data) - cut - 4 >= int(head[at + 15 :].split(b"\r\n", 1)[0])


def cpu_s(party: Party) -> float:
    """Processor time so far, 0 for a party that we did not start."""
    return party.cpu_s() if party.pid else 0.0


def measure(requests: int, app_port: int, app_model: str) -> dict[str, object]:
    with ExitStack() as stack:
        worker = python_party(stack, "direct", "hop_worker.py")
        port = str(worker.port)
        parties = [
            worker,
            python_party(stack, "coolhead", "hop_routed.py", port),
            python_party(stack, "coolhead_bare", "hop_bare.py", port),
        ]
        nginx = nginx_party(stack, worker.port)
        if nginx is not None:
            parties.append(nginx)
        parties.append(python_party(stack, "starlette_httpx2", "hop_starlette.py", port))
        askers = [Asker(party) for party in parties]
        if app_port:
            askers.append(Asker(Party("app", app_port), app_model))
        for asker in askers:
            for _ in range(100):
                asker.ask()
            asker.times_s.clear()
        before_s = {asker.party.name: cpu_s(asker.party) for asker in askers}
        batch = 25
        for turn in range(requests // batch):
            # Each party goes first equally often.
            order = askers[turn % len(askers) :] + askers[: turn % len(askers)]
            for asker in order:
                for _ in range(batch):
                    asker.ask()
        spent_s = {
            asker.party.name: cpu_s(asker.party) - before_s[asker.party.name] for asker in askers
        }
    direct = percentile(askers[0].times_s, 50)
    spent_s.pop("direct")  # it has worked for all of them
    result: dict[str, object] = {"requests": requests, "unit": "ms"}
    added: dict[str, float] = {}
    for asker in askers:
        p50, p90, p99 = (percentile(asker.times_s, p) * 1000 for p in (50, 90, 99))
        added[asker.party.name] = p50 - direct * 1000
        told = result[asker.party.name] = {
            "p50": round(p50, 4),
            "p90": round(p90, 4),
            "p99": round(p99, 4),
            "added": round(added[asker.party.name], 4),
        }
        if asker.party.name in spent_s:
            told["cpu_us"] = round(spent_s[asker.party.name] / len(asker.times_s) * 1e6, 1)
    if "nginx" in added:
        result["ratio_to_nginx"] = round(added["coolhead"] / added["nginx"], 3)
        result["bare_ratio_to_nginx"] = round(added["coolhead_bare"] / added["nginx"], 3)
        if "app" in added:
            result["app_ratio_to_nginx"] = round(added["app"] / added["nginx"], 3)
    result["share_of_starlette"] = round(added["coolhead"] / added["starlette_httpx2"], 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--app-port", type=int, default=0)
    parser.add_argument("--app-model", default="m")
    options = parser.parse_args()
    report(measure(options.requests, options.app_port, options.app_model), as_json=options.json)


if __name__ == "__main__":
    main()
