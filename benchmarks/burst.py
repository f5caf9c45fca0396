"""The real thing under load: distinct long prompts, then a burst, and what the worker took meanwhile.

    python benchmarks/burst.py MODEL.gguf [--json] [--too-small] [--prompts 20] [--clients 16] ...

The whole app, headless, with its real engine and guard, in a home of its own. Within a right plan no
worker is stopped. With `--too-small` the parts run in this process with a planner that says a tenth of
the truth for the first load: its worker must be stopped, the clients told why, and a smaller one must
answer next.
"""

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from app.core.backends.caps import LEAST_MARGIN_BYTES, MARGIN_SHARE
from app.core.event_log import read_events
from app.core.paths import Paths
from app.core.settings import Settings
from app.core.settings_file import SettingsFile
from benchmarks.burst_parts import Parts
from benchmarks.common import report
from tests.e2e.app_process import AppProcess, install_model

MIB = 1024 * 1024
CHAT = "/v1/chat/completions"
LOOK_S = 0.25
NEXT_LIMIT_S = 120.0
WORDS = [
    "river",
    "stone",
    "garden",
    "winter",
    "engine",
    "letter",
    "mountain",
    "silver",
    "market",
    "window",
    "paper",
    "shadow",
    "bridge",
    "forest",
    "candle",
    "harbor",
    "meadow",
    "thunder",
    "copper",
    "ladder",
    "marble",
    "orchard",
    "pepper",
    "saddle",
    "timber",
    "velvet",
]


@dataclass(frozen=True, slots=True)
class Memory:
    """The worker at one moment; zeros where there is none."""

    own_bytes: int = 0
    cap_bytes: int = 0
    kernel_limit_bytes: int = 0
    cap_kind: str = ""
    context_tokens: int = 0

    @property
    def planned_bytes(self) -> int:
        """What the cap was made from."""
        by_share = int(self.cap_bytes / (1 + MARGIN_SHARE))
        return min(self.cap_bytes - LEAST_MARGIN_BYTES, by_share)


Look = Callable[[], Awaitable[Memory]]


@dataclass(frozen=True, slots=True)
class App:
    """A Coolhead that serves: its address, its worker's memory, what it has told."""

    url: str
    look: Look
    ends: Callable[[], list[dict[str, Any]]]


@dataclass(slots=True)
class Seen:
    """What came back, and the worker's figures while it did."""

    statuses: Counter[str] = field(default_factory=Counter)
    told: list[str] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)


def text_of(count: int, seed: int) -> str:
    """Distinct from its first word on, so that no prefix is shared."""
    source = random.Random(seed)
    return " ".join(source.choice(WORDS) for _ in range(count))


async def ask(
    client: httpx2.AsyncClient, seen: Seen, text: str, tokens: int
) -> "httpx2.Response | None":
    body = {
        "model": "auto",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
    }
    try:
        answer = await client.post(CHAT, json=body)
    except httpx2.HTTPError as error:
        seen.statuses[f"connection: {type(error).__name__}"] += 1
        return None
    seen.statuses[str(answer.status_code)] += 1
    if answer.status_code == 200:
        seen.prompt_tokens.append(int(answer.json()["usage"]["prompt_tokens"]))
    else:
        with contextlib.suppress(ValueError, KeyError):
            sentence = str(answer.json()["error"]["message"])
            if sentence not in seen.told:
                seen.told.append(sentence)
    return answer


async def watch(look: Look, seen: Seen) -> None:
    while True:
        seen.memory.append(await look())
        await asyncio.sleep(LOOK_S)


async def measure(app: App, arguments: argparse.Namespace) -> dict[str, object]:
    seen = Seen()
    limits = httpx2.Limits(max_connections=arguments.clients + arguments.slots)
    async with httpx2.AsyncClient(base_url=app.url, timeout=1800, limits=limits) as client:
        watching = asyncio.create_task(watch(app.look, seen))
        began_s = time.monotonic()
        try:
            # The first answer says how many tokens a word is.
            first = Seen()
            await ask(client, first, text_of(200, 0), 1)
            if arguments.too_small and not first.prompt_tokens:
                seen.told += first.told  # it was too small even to load
                await next_answer(client)
                await ask(client, first, text_of(200, 0), 1)
            if not first.prompt_tokens:
                return {"failed": f"no first answer: {first.statuses} {first.told}"}
            words = int(200 * (arguments.tokens - 30) / (first.prompt_tokens[0] - 30))
            load_s = time.monotonic() - began_s

            gate = asyncio.Semaphore(arguments.slots)

            async def one(number: int) -> None:
                async with gate:
                    await ask(client, seen, text_of(words, number + 1), arguments.answer)

            await asyncio.gather(*(one(number) for number in range(arguments.prompts)))
            prompts_s = time.monotonic() - began_s - load_s
            burst = Seen()
            await asyncio.gather(
                *(
                    ask(client, burst, text_of(words // 4, 1000 + number), arguments.answer)
                    for number in range(arguments.clients)
                )
            )
            burst_s = time.monotonic() - began_s - load_s - prompts_s
            after = await next_answer(client) if arguments.too_small else {}
            seen.memory.append(await app.look())
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    return {
        "prompts": dict(seen.statuses),
        "prompt_tokens": [min(seen.prompt_tokens), max(seen.prompt_tokens)]
        if seen.prompt_tokens
        else [],
        "burst": dict(burst.statuses),
        "seconds": {"first": round(load_s, 1), "prompts": round(prompts_s, 1), "burst": round(burst_s, 1)},
        "told": [*seen.told, *burst.told],
        **after,
        **figures(seen.memory),
        "ends": app.ends(),
    }  # fmt: skip


async def next_answer(client: httpx2.AsyncClient) -> dict[str, object]:
    """Asks as a patient client does, coming back when it is told to."""
    began_s = time.monotonic()
    seen = Seen()
    while time.monotonic() - began_s < NEXT_LIMIT_S:
        answer = await ask(client, seen, "Say hello.", 4)
        if answer is not None and answer.status_code == 200:
            break
        wait_s = float(answer.headers.get("retry-after", "1")) if answer is not None else 1.0
        await asyncio.sleep(wait_s)
    return {
        "next request": dict(seen.statuses),
        "next request after s": round(time.monotonic() - began_s, 1),
        "told meanwhile": seen.told,
    }


def figures(memory: list[Memory]) -> dict[str, object]:
    """Peak against plan for each size of worker, in MiB."""
    found: dict[str, object] = {}
    for context in sorted({one.context_tokens for one in memory if one.cap_bytes}, reverse=True):
        own = [one for one in memory if one.context_tokens == context]
        peak = max(one.own_bytes for one in own)
        planned = max(one.planned_bytes for one in own)
        found[f"worker with {context} tokens a slot"] = {
            "own_peak_mib": peak // MIB,
            "planned_own_mib": planned // MIB,
            "cap_mib": own[-1].cap_bytes // MIB,
            "kernel_limit_mib": own[-1].kernel_limit_bytes // MIB,
            "cap_kind": own[-1].cap_kind,
            "within_plan": peak <= planned,
        }
    return found


def settings_of(arguments: argparse.Namespace) -> Settings:
    return Settings().replace(
        {
            "model.threads": arguments.threads,
            "model.context_tokens": arguments.context,
            "model.slots": arguments.slots,
            "model.placement": "cpu_only",
            "memory.prompt_cache_bytes": arguments.cache_mib * MIB,
            "queue.max_wait_s": 1800.0,
        }
    )


@contextlib.asynccontextmanager
async def whole_app(
    home: Paths, settings: Settings, arguments: argparse.Namespace
) -> AsyncIterator[App]:
    """`coolhead --headless` in a process of its own, with a private home."""
    SettingsFile(home.settings_file).save(settings)
    install_model(home, arguments.model.resolve())
    with AppProcess(home) as app:

        async def look() -> Memory:
            status = await asyncio.to_thread(app.status)
            for worker in status["workers"]:
                return Memory(**{name: worker[name] for name in Memory.__dataclass_fields__})
            return Memory()

        def ends() -> list[dict[str, Any]]:
            kept = [one for one in read_events(home.events_file, 200) if is_end(one)]
            return [short(one) for one in kept]

        yield App(app.url, look, ends)


@contextlib.asynccontextmanager
async def lying_parts(
    home: Paths, settings: Settings, arguments: argparse.Namespace
) -> AsyncIterator[App]:
    """The same parts in this process, with a planner that says too little for the first load."""
    install_model(home, arguments.model.resolve())
    async with Parts(home, settings, arguments.share) as parts:

        async def look() -> Memory:
            for view in parts.supervisor.workers():
                cap = view.cap
                return Memory(
                    view.own_bytes if view.pid else 0,
                    view.cap_bytes,
                    cap.limit_bytes if cap else 0,
                    cap.kind if cap else "",
                    view.context_tokens,
                )
            return Memory()

        yield App(parts.url, look, lambda: [short(one) for one in parts.told() if is_end(one)])


def is_end(event: dict[str, Any]) -> bool:
    return event["event"] == "WorkerExited" or event.get("step") in {"killed", "ask_user"}


def short(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("event", "step", "cause", "sentence") if name in event}


async def run(arguments: argparse.Namespace) -> dict[str, object]:
    settings = settings_of(arguments)
    make = lying_parts if arguments.too_small else whole_app
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        home = Paths(root / "config", root / "state", root / "data", root / "logs")
        home.prepare()
        async with make(home, settings, arguments) as app:
            return await measure(app, arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--too-small", action="store_true")
    parser.add_argument("--share", type=float, default=0.1, help="what part of the plan is said")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=1500, help="in each prompt")
    parser.add_argument("--answer", type=int, default=16, help="tokens of each answer")
    parser.add_argument("--clients", type=int, default=16, help="of the burst")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=0, help="tokens of each slot")
    parser.add_argument("--cache-mib", type=int, default=512, help="prompt cache")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    # A worker that only creeps up to its cap is unloaded in time; one of this size runs into it.
    arguments.context = arguments.context or (8192 if arguments.too_small else 3328)
    result = asyncio.run(run(arguments))
    report(result, as_json=arguments.json)
    return 1 if "failed" in result else 0


if __name__ == "__main__":
    sys.exit(main())
