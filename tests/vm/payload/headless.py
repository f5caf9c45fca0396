"""The whole app on a desktop-like machine: one chat, its worker's limits, a kill of the worker's scope."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.fakes.guard_bench import is_alive
from tests.vm.payload.facts import ask, check, finish, group_of, read, say, wait_for

HOME = Path("/home/user/coolhead")
SETTINGS = """
model: {threads: 1, context_tokens: 512, slots: 1}
memory: {prompt_cache_bytes: 0}
engine: {load_timeout_s: 900}
desktop: {log_level: debug}
"""
COOLHEAD = [str(Path(sys.executable).parent / "coolhead")]


def port() -> int:
    """The endpoint's, 0 until it is open."""
    try:
        return int(json.loads((HOME / "state/endpoint.json").read_text())["port"])
    except (OSError, ValueError):
        return 0


def call(method: str, path: str, body: object = None) -> Any:
    token = (HOME / "state/admin-token").read_text().strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port()}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=900) as response:
        return json.loads(response.read())


def chat() -> str:
    """One answer, however often we are told to come again: a load takes minutes here."""
    body = {
        "model": "auto",
        # An emulated core takes seconds for each token of a prompt: no long system prompt, then.
        "messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}],
        "max_tokens": 2,
    }
    last = ""
    for _ in range(20):
        try:
            answer = call("POST", "/v1/chat/completions", body)
            return f"answered: {answer['choices'][0]['message']['content']!r}"
        except urllib.error.HTTPError as error:
            last = f"{error.code}: {error.read().decode()[:300]}"
            say(last)
            time.sleep(20)
    return last


def worker() -> dict[str, Any]:
    (found,) = call("GET", "/admin/status")["workers"]
    return dict(found)


def check_limits(status: dict[str, Any]) -> Path:
    found = worker()
    group = group_of(found["pid"])
    print(
        f"       planned {found['planned_bytes']}, taken {found['taken_bytes']}, cap {found['cap_bytes']}"
    )
    check(
        "the app says that a scope holds",
        holds=found["cap_kind"] == "systemd_scope",
        seen=found["cap_kind"],
    )
    check("the worker has a scope of its own", holds=group.name.endswith(".scope"), seen=group)
    limit = read(group, "memory.max")
    check(
        "memory.max is the limit that the app says",
        holds=limit == str(found["kernel_limit_bytes"]) and int(limit) > found["cap_bytes"],
        seen=limit,
    )
    check(
        "swap is forbidden",
        holds=read(group, "memory.swap.max") == "0",
        seen=read(group, "memory.swap.max"),
    )
    check(
        "it ends as a whole",
        holds=read(group, "memory.oom.group") == "1",
        seen=read(group, "memory.oom.group"),
    )
    check(
        "memory.high is not set",
        holds=read(group, "memory.high") == "max",
        seen=read(group, "memory.high"),
    )
    ours = group_of(status["pid"])
    check(
        "app and guard are in another group",
        holds=group not in {ours, group_of(status["guard_pid"])},
        seen=ours,
    )
    return group


def check_scope_kill(status: dict[str, Any], group: Path) -> None:
    before = worker()["pid"]
    ask("systemctl", "--user", "kill", "--signal=KILL", group.name)
    gone = wait_for(lambda: not is_alive(before), 60)
    alive = is_alive(status["pid"]) and is_alive(status["guard_pid"])
    check(
        "a kill of the scope ends the worker, not the app", holds=gone and alive, seen=(gone, alive)
    )
    told = chat()
    check("the next chat is answered", holds=told.startswith("answered"), seen=told)
    check("by a new worker", holds=worker()["pid"] != before, seen=worker()["pid"])


def main() -> None:
    for folder in ("config", "state", "data/models"):
        (HOME / folder).mkdir(parents=True, exist_ok=True)
    (HOME / "config/settings.yaml").write_text(SETTINGS)
    for model in Path("/payload/models").iterdir():
        (HOME / "data/models" / model.name).symlink_to(model)
    environment = os.environ | {"COOLHEAD_HOME": str(HOME)}
    environment.pop("PYTHONPATH")
    began_s = time.monotonic()
    log = Path("/home/user/coolhead.log")
    with log.open("wb") as out:
        # As a desktop starts an app: in a scope of its own below app.slice.
        app = subprocess.Popen(
            ["systemd-run", "--user", "--scope", "--quiet", "--unit=app-coolhead-tray.scope", *COOLHEAD, "--headless"],
            env=environment, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        if not wait_for(lambda: port() or app.poll() is not None, 600):
            check("the endpoint opens", holds=False, seen=app.poll())
            return
        say(f"the endpoint opened after {time.monotonic() - began_s:.0f} s")
        began_s = time.monotonic()
        told = chat()
        check("a chat is answered", holds=told.startswith("answered"), seen=told)
        say(f"after {time.monotonic() - began_s:.0f} s")
        status = call("GET", "/admin/status")
        group = check_limits(status)
        check_scope_kill(status, group)
        family = [status["pid"], status["guard_pid"], worker()["pid"]]
        app.send_signal(signal.SIGTERM)
        check(
            "SIGTERM ends app, guard and worker",
            holds=wait_for(lambda: not any(is_alive(pid) for pid in family), 120),
            seen=family,
        )
        done = subprocess.run(
            [*COOLHEAD, "events"], env=environment, capture_output=True, text=True, check=False
        )
        print(done.stdout[-2500:], done.stderr[-500:])
    except Exception as error:
        check("the app", holds=False, seen=repr(error))
        raise
    finally:
        app.kill()
        print(log.read_text(errors="replace")[-3000:])


if __name__ == "__main__":
    main()
    finish()
