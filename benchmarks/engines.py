"""Engines side by side: clients that stream at the same time, from each engine in turn, in one run.

    python benchmarks/engines.py MODEL.gguf --json [--clients 4] [--tokens 48] [--rounds 2]
        [--llama-server PATH] [--llama-cpp-python FOLDER]

Every engine runs as the app runs it: as a worker under the guard, with its plan and its cap. The first
round warms up and is not counted. An engine that cannot do two things at once gets one slot and queues.
"""

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.core.backends.builds import InstalledBuild
from app.core.backends.engine import Engine
from app.core.backends.engine_llama_cpp_python import LlamaCppPython
from app.core.backends.engine_llama_server import LlamaServer
from app.core.backends.engine_xllamacpp import Xllamacpp
from app.core.backends.llama_cpp import LlamaCppBackend
from app.core.backends.supervisor import ReadyWorker
from app.core.models.load_settings import LoadSettings
from app.core.settings import Settings
from tests.engines.engine_bench import bench, chat_body

SUBJECTS = ("rivers", "clocks", "bread", "maps", "stars", "bridges", "salt", "wool")


@dataclass(frozen=True, slots=True)
class Stream:
    """What one client saw; seconds since all of them asked."""

    first_s: float
    last_s: float
    tokens: int


async def stream(worker: ReadyWorker, subject: str, tokens: int) -> Stream:
    body = json.dumps(chat_body(f"Write about {subject}.", tokens, stream=True)).encode()
    began_s = time.perf_counter()
    reader, writer = await asyncio.open_connection(worker.host, worker.port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {worker.host}:{worker.port}\r\n"
        f"Authorization: Bearer {worker.key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    first_s, count = 0.0, 0
    while line := await reader.readline():
        if line.startswith(b"data: {") and _content(line):
            count += 1
            first_s = first_s or time.perf_counter() - began_s
    writer.close()
    return Stream(first_s, time.perf_counter() - began_s, count)


def _content(line: bytes) -> bool:
    choices = json.loads(line[6:]).get("choices") or [{}]
    return bool(choices[0].get("delta", {}).get("content"))


async def measure(
    engine: Engine, model: Path, load: LoadSettings, clients: int, tokens: int, rounds: int
) -> dict[str, object]:
    if not engine.capabilities.parallel:
        load = dataclasses.replace(load, slots=1)
    async with bench(LlamaCppBackend(engines=[engine]), {"m": model}, load, bound_s=900) as made:
        began_s = time.perf_counter()
        worker = await made.supervisor.ensure_ready("m")
        load_s = time.perf_counter() - began_s
        rates, firsts, lasts = [], [], []
        for number in range(rounds + 1):
            began_s = time.perf_counter()
            seen = await asyncio.gather(
                *(stream(worker, SUBJECTS[n % len(SUBJECTS)], tokens) for n in range(clients))
            )
            if number:
                whole_s = time.perf_counter() - began_s
                rates.append(sum(one.tokens for one in seen) / whole_s)
                firsts.append(min(one.first_s for one in seen))
                lasts.append(max(one.first_s for one in seen))
        view = made.supervisor.worker("m")
        assert view is not None
        return {
            "engine": f"{engine.name} {engine.find(with_devices=False).version}",
            "slots": load.slots,
            "load_s": round(load_s, 2),
            "tokens_per_s": round(statistics.median(rates), 2),
            "first_client_ttft_s": round(statistics.median(firsts), 2),
            "last_client_ttft_s": round(statistics.median(lasts), 2),
            "own_mib": view.own_bytes // 2**20,
            "planned_own_mib": view.plan.own_bytes // 2**20 if view.plan else 0,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--llama-server", default="")
    parser.add_argument("--llama-cpp-python", type=Path, default=None)
    args = parser.parse_args()
    load = LoadSettings(context_tokens=512, slots=args.clients, threads=args.threads)
    settings = Settings().replace({"engine.llama_server": args.llama_server})
    engines: list[Engine] = [Xllamacpp()]
    if args.llama_server:
        engines.append(LlamaServer(lambda: settings))
    if args.llama_cpp_python:
        name = LlamaCppPython.name
        engines.append(LlamaCppPython(InstalledBuild(name, name, "", args.llama_cpp_python)))
    rows = [
        asyncio.run(measure(engine, args.model, load, args.clients, args.tokens, args.rounds))
        for engine in engines
    ]
    if args.json:
        print(
            json.dumps({"clients": args.clients, "tokens": args.tokens, "engines": rows}, indent=2)
        )
    else:
        for row in rows:
            print("  ".join(f"{name}={value}" for name, value in row.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
