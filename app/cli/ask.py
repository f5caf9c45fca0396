"""`coolhead ask "..."`: one question, the answer streamed to the terminal, and what it cost.

Uses the Coolhead that runs; where none does, starts one headless for the call, which ends with it
(it watches its standard input, so that it ends even if this process is killed).
"""

import argparse
import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.cli.client import RunningApp, find_running
from app.cli.text import size
from app.core.errors import CoolheadError, NotRunning
from app.core.models.catalogue import starter
from app.core.models.download import fetch_starter, origin
from app.core.models.library import ModelLibrary
from app.core.paths import Paths, user_paths
from app.core.settings_file import SettingsFile

START_LIMIT_S = 60.0
ANSWER_LIMIT_S = 3600.0


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser("ask", help="ask the model one question")
    parser.add_argument("question", help="the question; - reads it from standard input")
    parser.add_argument("--model", default="auto", help="a model id (default: auto)")
    parser.add_argument("--system", default="", help="a system prompt")
    parser.add_argument("--max-tokens", type=int, default=1024, metavar="N")
    parser.add_argument("--json", action="store_true", help="the answer and its figures as JSON")


@dataclass(slots=True)
class _Answer:
    text: str = ""
    model: str = ""
    tokens: int = 0
    started_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0
    finish: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.started_s if self.first_s else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Decode speed: the first token is the prefill's."""
        span = self.last_s - self.first_s
        return (self.tokens - 1) / span if self.tokens > 1 and span > 0 else 0.0


def run(args: argparse.Namespace) -> int:
    """Raises: CoolheadError, with what to do, for whatever stops the answer."""
    paths = user_paths()
    paths.prepare()
    question = sys.stdin.read() if args.question == "-" else args.question
    if args.model == "auto":
        _need_a_model(paths)
    running = find_running(paths)
    if running is not None:
        return _answer(running, args, question)
    with _headless(paths) as started:
        return _answer(started, args, question)


def _need_a_model(paths: Paths) -> None:
    settings = SettingsFile(paths.settings_file).load().settings
    folders = [Path(part) for part in settings.model.folders.split(os.pathsep) if part]
    if not ModelLibrary(paths, folders).specs():
        with progress_bar(origin(starter(), paths)) as shown:
            fetch_starter(paths, shown)


@contextlib.contextmanager
def progress_bar(title: str) -> Iterator[Any]:
    """A bar on stderr; called with (bytes so far, bytes in all). Silent where stderr is no terminal."""
    is_terminal = sys.stderr.isatty()
    print(f"{title}.", file=sys.stderr)

    def show(done: int, total: int) -> None:
        if is_terminal and total:
            filled = int(30 * done / total)
            bar = "#" * filled + "-" * (30 - filled)
            print(f"\r[{bar}] {size(done)} of {size(total)} ", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if is_terminal:
            print(file=sys.stderr)


@contextlib.contextmanager
def _headless(paths: Paths) -> Iterator[RunningApp]:
    """A Coolhead of our own on a free port, gone with its guard and workers when the block ends."""
    program = (
        [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-P", "-m", "app"]
    )
    package_parent = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        part for part in (package_parent, environment.get("PYTHONPATH", "")) if part
    )
    log = paths.logs / "ask.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*program, "--headless", "--port", "auto", "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            # Ctrl-C is ours to handle; the app ends when its standard input does.
            start_new_session=True,
        )
    try:
        yield _wait_until_up(paths, process, log)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(paths: Paths, process: "subprocess.Popen[bytes]", log: Path) -> RunningApp:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        running = find_running(paths)
        if running is not None and running.port:
            return running
        if process.poll() is not None:
            break
        time.sleep(0.02)
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
    raise NotRunning("Coolhead did not start:\n" + "\n".join(last))


def _answer(running: RunningApp, args: argparse.Namespace, question: str) -> int:
    messages = [{"role": "user", "content": question}]
    if args.system:
        messages.insert(0, {"role": "system", "content": args.system})
    body = {
        "model": args.model,
        "messages": messages,
        "max_tokens": args.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = _Answer(started_s=time.monotonic())
    connection, response = running.open("POST", "/v1/chat/completions", body, ANSWER_LIMIT_S)
    with contextlib.closing(connection):
        if response.status >= 400:
            running.decode(response, response.read())
        for event in _events(response):
            _take(event, answer, is_shown=not args.json)
    if not answer.finish:
        raise CoolheadError(
            "The answer broke off: the connection was closed before it was complete."
        )
    status = running.call("GET", "/admin/status")
    worker = _worker_of(status, answer.model)
    if args.json:
        figures = {
            "model": answer.model,
            "text": answer.text,
            "finish_reason": answer.finish,
            "tokens": answer.tokens,
            "tokens_per_s": round(answer.tokens_per_s, 1),
            "ttft_s": round(answer.ttft_s, 3),
            "worker": worker,
        }
        print(json.dumps(figures, indent=2))
        return 0
    print()
    print(_last_line(answer, worker))
    return 0


def _events(response: Any) -> Iterator[dict[str, Any]]:
    """What comes of a stream. Raises: CoolheadError when its connection is broken off."""
    try:
        for line in response:
            text = line.decode("utf-8", errors="replace").strip()
            if text.startswith("data:") and text != "data: [DONE]":
                yield json.loads(text[5:])
    except (OSError, http.client.HTTPException) as error:
        raise CoolheadError(
            "The answer was broken off. `coolhead events` says whether memory was the reason."
        ) from error


def _take(event: dict[str, Any], answer: _Answer, *, is_shown: bool) -> None:
    if "error" in event:
        problem = event["error"]
        raise CoolheadError(problem["message"] if isinstance(problem, dict) else str(problem))
    answer.model = event.get("model") or answer.model
    usage = event.get("usage")
    if usage:
        answer.tokens = usage.get("completion_tokens", answer.tokens)
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        piece = delta.get("content") or delta.get("reasoning_content") or ""
        if piece:
            now = time.monotonic()
            answer.first_s = answer.first_s or now
            answer.last_s = now
            answer.text += piece
            if not usage:
                answer.tokens += 1
            if is_shown:
                print(piece, end="", flush=True)
        answer.finish = choice.get("finish_reason") or answer.finish


def _worker_of(status: dict[str, Any], model_id: str) -> dict[str, Any]:
    workers: list[dict[str, Any]] = status.get("workers", [])
    for worker in workers:
        if worker.get("model_id") == model_id:
            return worker
    return workers[0] if workers else {}


def _last_line(answer: _Answer, worker: dict[str, Any]) -> str:
    parts = [
        f"model {worker.get('model_id', answer.model)}",
        f"{answer.tokens} tokens",
        f"{answer.tokens_per_s:.1f} tokens/s",
        f"first token after {answer.ttft_s:.2f} s",
    ]
    if worker:
        by_guard = f"cap {size(worker['cap_bytes'])} by the guard"
        by_kernel = f"{size(worker['kernel_limit_bytes'])} by the kernel ({worker['cap_kind']})"
        parts += [
            f"memory planned {size(sum(worker['planned_bytes'].values()))}",
            f"taken {size(sum(worker['taken_bytes'].values()))}",
            f"{by_guard}, {by_kernel}",
        ]
    return "[" + " | ".join(parts) + "]"
