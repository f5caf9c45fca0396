"""A real Coolhead in a process of its own, as a user starts it; its whole family watched."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psutil

from app.core.paths import Paths

BOUND_S = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]


def wait_for(fact: Callable[[], Any], bound_s: float = BOUND_S, what: str = "") -> Any:
    """The first true value of `fact`; fails after `bound_s`."""
    deadline = time.monotonic() + bound_s
    while True:
        value = fact()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {bound_s:g} s in vain for {what or fact}")
        time.sleep(0.02)


def run_cli(
    *arguments: str, home: Paths, timeout_s: float = 120
) -> "subprocess.CompletedProcess[str]":
    """One `coolhead` verb, run to its end."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "app", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(home),
        check=False,
    )


def environment(home: Paths) -> dict[str, str]:
    """This process's, with our package on the path and the private home."""
    return {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "COOLHEAD_HOME": str(home.config.parent),
    }


def install_model(home: Paths, model: Path, name: str = "") -> str:
    """Links a model file into the home's models folder; its id."""
    target = home.models / (name or model.name)
    target.symlink_to(model)
    return target.stem.lower()


class AppProcess:
    """`coolhead --headless` with a private home. Use as a context manager."""

    def __init__(self, home: Paths, *arguments: str) -> None:
        self.home = home
        self.log = home.logs / "e2e.log"
        self._arguments = arguments
        self.process: subprocess.Popen[bytes]
        self.family: dict[int, psutil.Process] = {}
        self.at_exit = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "app",
                    "--headless",
                    "--port",
                    "auto",
                    *self._arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self.home),
                start_new_session=True,
            )
        try:
            wait_for(self._is_up, what="the endpoint to open")
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.look()
        return self

    def __exit__(self, *_: object) -> None:
        self.at_exit.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(BOUND_S)
            except subprocess.TimeoutExpired:
                # Where every thread stands goes to its stderr, and so into the log.
                self.process.send_signal(signal.SIGABRT)
                self.process.wait()
                raise AssertionError(self.log.read_text(errors="replace")[-6000:]) from None
        self.assert_gone()

    def _is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text(errors="replace")[-4000:]
        try:
            told = json.loads(self.home.endpoint_file.read_text())
        except (OSError, ValueError):
            return False
        self.port = int(told["port"])
        return bool(told["pid"] == self.process.pid and self.port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def look(self) -> None:
        """Notes the processes that belong to the app now."""
        me = psutil.Process(self.process.pid)
        for member in [me, *me.children(recursive=True)]:
            self.family[member.pid] = member

    def alive(self) -> list[psutil.Process]:
        """Those of the noted processes that still run."""
        return [
            member
            for member in self.family.values()
            if member.is_running() and member.status() != psutil.STATUS_ZOMBIE
        ]

    def assert_gone(self, bound_s: float = BOUND_S) -> None:
        wait_for(lambda: not self.alive(), bound_s, f"{self.alive()} to be gone")

    def status(self) -> dict[str, Any]:
        """`coolhead status --json` over the admin endpoint."""
        token = self.home.token_file.read_text().strip()
        _, tree = self.call("GET", "/admin/status", headers={"Authorization": f"Bearer {token}"})
        assert isinstance(tree, dict)
        return tree

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        raw: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout_s: float = 120,
    ) -> tuple[int, Any]:
        """Status and decoded JSON (or text)."""
        data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                status, payload = response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, payload = error.code, error.read()
        try:
            return status, json.loads(payload)
        except ValueError:
            return status, payload.decode(errors="replace")

    def chat(self, text: str, **more: Any) -> tuple[int, Any]:
        """One answer, not streamed."""
        return self.call(
            "POST",
            "/v1/chat/completions",
            {
                "model": "auto",
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 8,
                **more,
            },
        )
