"""However Coolhead is ended, whatever it is doing, it exits and leaves nothing behind."""

import http.client
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from app.cli.client import RunningApp, find_running
from app.core.paths import Paths
from tests.e2e.app_process import AppProcess, install_model, run_cli, wait_for

PROMISE_S = 5.0
"""What the user is promised; printed, while the tests allow for a busy machine."""


def _by_sigterm(app: AppProcess) -> None:
    app.process.send_signal(signal.SIGTERM)


def _by_ctrl_c(app: AppProcess) -> None:
    app.process.send_signal(signal.SIGINT)


def _by_stop(app: AppProcess) -> None:
    result = run_cli("stop", home=app.home)
    assert result.returncode == 0, result.stderr


def _idle(app: AppProcess) -> None:
    app.look()


def _loading(app: AppProcess) -> None:
    """The worker exists and is held (SIGSTOP) in mid-load, so that the load cannot end first."""

    def first_request() -> None:
        try:
            app.chat("Hello")
        except OSError:
            return

    threading.Thread(target=first_request, daemon=True).start()
    worker = wait_for(lambda: _worker_of(app), what="a worker process")
    os.kill(worker.pid, signal.SIGSTOP)
    app.look()


def _worker_of(app: AppProcess) -> psutil.Process | None:
    for member in psutil.Process(app.process.pid).children(recursive=True):
        try:
            if "worker" in member.cmdline():
                return member
        except psutil.Error:
            continue
    return None


def _streaming(app: AppProcess) -> None:
    open_stream(app)
    app.look()


def open_stream(app: AppProcess) -> None:
    """A long answer whose first content has come; closed with the app."""
    connection = http.client.HTTPConnection("127.0.0.1", app.port, timeout=120)
    app.at_exit.callback(connection.close)
    body = {
        "model": "auto",
        "stream": True,
        "max_tokens": 2000,
        "messages": [{"role": "user", "content": "Count from one to one thousand in words."}],
    }
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = app.at_exit.enter_context(connection.getresponse())
    assert response.status == 200, response.read()
    while True:
        line = response.readline()
        assert line, "the stream ended before its first content"
        if b'"content":"' in line:
            return


@pytest.mark.real
@pytest.mark.parametrize("doing", [_idle, _loading, _streaming])
@pytest.mark.parametrize("ending", [_by_sigterm, _by_ctrl_c, _by_stop])
def test_end_while_busy_exits_zero_and_leaves_nothing(
    coolhead_home: Paths,
    smollm2: Path,
    doing: Callable[[AppProcess], None],
    ending: Callable[[AppProcess], None],
) -> None:
    install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        doing(app)
        started = time.monotonic()
        ending(app)
        assert app.process.wait(60) == 0, app.log.read_text(errors="replace")[-3000:]
        app.assert_gone()
        print(f"gone after {time.monotonic() - started:.2f} s (promised: {PROMISE_S:g})")
        assert not coolhead_home.endpoint_file.exists()


@pytest.mark.real
def test_kill_of_the_app_in_mid_stream_leaves_no_worker(
    coolhead_home: Paths, smollm2: Path
) -> None:
    install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        open_stream(app)
        app.look()
        assert len(app.family) >= 3
        started = time.monotonic()
        app.process.kill()
        app.process.wait()
        app.assert_gone()
        print(f"gone after {time.monotonic() - started:.2f} s")
    with AppProcess(coolhead_home) as again:
        status, answer = again.chat("Hello")
        assert status == 200, answer


@pytest.mark.real
def test_kill_of_the_guard_is_survived_with_a_new_one(coolhead_home: Paths, smollm2: Path) -> None:
    install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        assert app.chat("Hello")[0] == 200
        app.look()
        guard = app.status()["guard_pid"]
        worker = app.status()["workers"][0]["pid"]
        os.kill(guard, signal.SIGKILL)
        wait_for(
            lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == "zombie",
            what="the worker to die with its guard",
        )
        wait_for(lambda: app.status()["guard_pid"] not in {0, guard}, what="a new guard")
        wait_for(lambda: app.chat("Hello")[0] == 200, what="an answer from a new worker")
        app.look()


def test_second_start_finds_the_first_and_exits_zero(coolhead_home: Paths) -> None:
    with AppProcess(coolhead_home) as app:
        result = run_cli("--headless", home=coolhead_home)
        assert result.returncode == 0, result.stderr
        assert str(app.process.pid) in result.stdout


def _running(home: Paths) -> RunningApp:
    found = find_running(home)
    assert found is not None
    return found


def test_stopped_endpoint_leaves_the_app_within_reach(coolhead_home: Paths) -> None:
    with AppProcess(coolhead_home) as app:
        running = _running(coolhead_home)
        running.call("POST", "/admin/stop", {})
        wait_for(lambda: _running(coolhead_home).port == 0, what="the port to close")
        with pytest.raises(OSError):
            app.call("GET", "/health")
        told = run_cli("status", "--json", home=coolhead_home)
        assert json.loads(told.stdout)["state"] == "stopped"
        assert run_cli("--headless", home=coolhead_home).returncode == 0
        asked = run_cli("ask", "Hello", "--model", "any", home=coolhead_home)
        assert asked.returncode == 1
        assert "coolhead start" in asked.stderr
        assert run_cli("start", home=coolhead_home).returncode == 0
        app.port = _running(coolhead_home).port
        assert app.call("GET", "/health")[0] == 200
        running.call("POST", "/admin/stop", {})
        assert run_cli("stop", home=coolhead_home).returncode == 0
        assert app.process.wait(60) == 0


def test_state_folder_that_was_swept_is_mended(coolhead_home: Paths) -> None:
    with AppProcess(coolhead_home) as app:
        shutil.rmtree(coolhead_home.state)
        wait_for(lambda: find_running(coolhead_home), what="the app to be found again")
        assert run_cli("status", home=coolhead_home).returncode == 0
        app.look()


def test_api_key_is_asked_of_clients_and_not_of_our_own(
    coolhead_home: Paths, smollm2: Path
) -> None:
    install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        assert (
            run_cli("settings", "set", "server.api_key", "s3cret", home=coolhead_home).returncode
            == 0
        )
        assert app.chat("Hello")[0] == 401
        asked = run_cli("ask", "Hello", "--max-tokens", "4", home=coolhead_home)
        assert asked.returncode == 0, asked.stderr
        app.look()


def test_lock_of_a_killed_app_does_not_stop_the_next(coolhead_home: Paths) -> None:
    with AppProcess(coolhead_home) as app:
        app.process.kill()
        app.process.wait()
        app.assert_gone()
        assert coolhead_home.endpoint_file.exists()
    assert run_cli("status", home=coolhead_home).returncode == 1
    with AppProcess(coolhead_home) as again:
        assert again.status()["state"] == "ready"


def test_stop_without_an_app_says_so(coolhead_home: Paths) -> None:
    result = run_cli("stop", home=coolhead_home)
    assert (result.returncode, result.stdout) == (0, "No Coolhead is running.\n")
