"""Engines side by side: clients that stream at the same time, from each engine in turn, in one run.

    python benchmarks/engines.py MODEL.gguf --json [--clients 4] [--tokens 48] [--rounds 2]
        [--llama-server PATH] [--llama-cpp-python FOLDER]

Every engine runs as the app runs it: as a worker under the guard, with its plan and its cap. All are
loaded at once and take turns, so that what else the machine does meets all alike; no two prompts are the
same, so that no cache answers for an engine. The first round warms up and is not counted. An engine
that cannot do two things at once gets one slot and queues. The last lines compare the first engine
with the last one.
"""

import argparse
import asyncio
import dataclasses
import importlib.metadata
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
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
from benchmarks.common import report
from tests.engines.engine_bench import EngineBench, bench, chat_body

SUBJECTS = ("rivers", "clocks", "bread", "maps", "stars", "bridges", "salt", "wool")


@dataclass(frozen=True, slots=True)
class Stream:
    """What one client saw; seconds since all of them asked."""

    first_s: float
    last_s: float
    tokens: int


async def stream(worker: ReadyWorker, text: str, tokens: int) -> Stream:
    body = json.dumps(chat_body(text, tokens, stream=True)).encode()
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


@dataclass(slots=True)
class Party:
    """An engine that is loaded, and what was seen of it so far."""

    engine: Engine
    slots: int
    made: EngineBench
    worker: ReadyWorker
    load_s: float
    rates: list[float] = field(default_factory=list)
    firsts_s: list[float] = field(default_factory=list)
    lasts_s: list[float] = field(default_factory=list)

    async def round(self, number: int, clients: int, tokens: int) -> None:
        began_s = time.perf_counter()
        seen = await asyncio.gather(
            *(stream(self.worker, prompt(number, client), tokens) for client in range(clients))
        )
        whole_s = time.perf_counter() - began_s
        if number:
            self.rates.append(sum(one.tokens for one in seen) / whole_s)
            self.firsts_s.append(min(one.first_s for one in seen))
            self.lasts_s.append(max(one.first_s for one in seen))

    def row(self) -> dict[str, object]:
        view = self.made.supervisor.worker("m")
        assert view is not None
        return {
            "engine": f"{self.engine.name} {self.engine.find(with_devices=False).version}",
            "slots": self.slots,
            "load_s": round(self.load_s, 2),
            "tokens_per_s": round(statistics.median(self.rates), 2),
            "first_client_ttft_s": round(statistics.median(self.firsts_s), 2),
            "last_client_ttft_s": round(statistics.median(self.lasts_s), 2),
            "own_mib": view.own_bytes // 2**20,
            "planned_own_mib": view.plan.own_bytes // 2**20 if view.plan else 0,
        }


def prompt(number: int, client: int) -> str:
    """One that no slot has seen the beginning of, whichever engine and round it is for."""
    subject = SUBJECTS[client % len(SUBJECTS)]
    return f"{number * 31 + client * 7 + 11} facts about {subject}, in long sentences, please."


async def loaded(stack: AsyncExitStack, engine: Engine, model: Path, load: LoadSettings) -> Party:
    if not engine.capabilities.parallel:
        load = dataclasses.replace(load, slots=1)
    backend = LlamaCppBackend(engines=[engine])
    made = await stack.enter_async_context(bench(backend, {"m": model}, load, bound_s=900))
    began_s = time.perf_counter()
    worker = await made.supervisor.ensure_ready("m")
    return Party(engine, load.slots, made, worker, time.perf_counter() - began_s)


async def measure(
    engines: Sequence[Engine],
    model: Path,
    load: LoadSettings,
    clients: int,
    tokens: int,
    rounds: int,
) -> dict[str, object]:
    async with AsyncExitStack() as stack:
        parties = [await loaded(stack, engine, model, load) for engine in engines]
        for number in range(rounds + 1):
            for party in parties:
                await party.round(number, clients, tokens)
        result: dict[str, object] = {
            "clients": clients,
            "tokens": tokens,
            "engines": [party.row() for party in parties],
        }
        if len(parties) > 1:
            ours, last = parties[0], parties[-1]
            rates = (statistics.median(ours.rates), statistics.median(last.rates))
            ttfts_s = (statistics.median(ours.lasts_s), statistics.median(last.lasts_s))
            result["first_to_last_tokens_per_s"] = round(rates[0] / rates[1], 2)
            result["first_to_last_ttft"] = round(ttfts_s[0] / ttfts_s[1], 2)
        return result


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
        name, folder = LlamaCppPython.name, args.llama_cpp_python
        found = importlib.metadata.distributions(name=name, path=[str(folder)])
        version = next((each.version for each in found), "")
        engines.append(LlamaCppPython(InstalledBuild(name, name, version, folder)))
    result = asyncio.run(measure(engines, args.model, load, args.clients, args.tokens, args.rounds))
    report(result, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
