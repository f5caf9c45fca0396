"""Settings that change while the app is at work."""

import contextlib
import http.client
import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.core.paths import Paths
from tests.e2e.app_process import AppProcess, install_model, wait_for


def change(app: AppProcess, **changes: object) -> tuple[int, Any]:
    """Keys with `__` for the dot."""
    token = app.home.token_file.read_text().strip()
    named = {name.replace("__", "."): value for name, value in changes.items()}
    return app.call(
        "POST",
        "/admin/settings",
        {"changes": named},
        headers={"Authorization": f"Bearer {token}"},
    )


def worker_of(app: AppProcess) -> psutil.Process | None:
    for member in psutil.Process(app.process.pid).children(recursive=True):
        try:
            if "worker" in member.cmdline():
                return member
        except psutil.Error:
            continue
    return None


def test_settings_changed_at_the_same_time_are_all_kept(coolhead_home: Paths) -> None:
    wanted = {"model__slots": 3, "model__threads": 2, "queue__max_queue_size": 17} | {
        f"memory__gpu_caps_bytes__CUDA{number}": 2**30 for number in range(9)
    }
    with AppProcess(coolhead_home) as app, ThreadPoolExecutor(len(wanted)) as pool:
        answers = list(pool.map(lambda item: change(app, **dict([item])), wanted.items()))
        assert [status for status, _ in answers] == [200] * len(wanted)
        settings = app.status()["settings"]
    assert settings["model"]["slots"] == 3
    assert settings["model"]["threads"] == 2
    assert settings["queue"]["max_queue_size"] == 17
    assert len(settings["memory"]["gpu_caps_bytes"]) == 9


@pytest.mark.real
@pytest.mark.skipif(os.name == "nt", reason="a load is held by a signal")
def test_settings_changed_during_a_load_count_for_that_model(
    coolhead_home: Paths, smollm2: Path
) -> None:
    install_model(coolhead_home, smollm2)
    answers: list[tuple[int, Any]] = []
    with AppProcess(coolhead_home) as app:
        asking = threading.Thread(target=lambda: answers.append(app.chat("Hello")))
        asking.start()
        worker = wait_for(lambda: worker_of(app), what="a worker process")
        os.kill(worker.pid, signal.SIGSTOP)
        changing = threading.Thread(
            target=lambda: answers.append(change(app, model__context_tokens=2048))
        )
        changing.start()
        wait_for(lambda: app.status()["settings"]["model"]["context_tokens"] == 2048)
        os.kill(worker.pid, signal.SIGCONT)
        asking.join()
        changing.join()
        (view,) = app.status()["workers"]
        assert (view["state"], view["context_tokens"]) == ("ready", 2048)
        assert [status for status, _ in answers] == [200, 200]
        app.look()


def test_endpoint_file_that_cannot_be_written_stops_neither_stop_nor_start(
    coolhead_home: Paths,
) -> None:
    with AppProcess(coolhead_home) as app:
        told = json.loads(app.home.endpoint_file.read_text())
        headers = {"Authorization": f"Bearer {app.home.token_file.read_text().strip()}"}

        def admin(method: str, path: str) -> Any:
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", told["admin_port"], timeout=60)
            ) as connection:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                assert answer.status == 200, answer.read()
                return json.loads(answer.read())

        # Nothing can be renamed onto a folder; other ways to stop a write do not stop root.
        app.home.endpoint_file.unlink()
        app.home.endpoint_file.mkdir()
        admin("POST", "/admin/stop")
        wait_for(lambda: admin("GET", "/admin/status")["state"] == "stopped", what="the stop")
        admin("POST", "/admin/start")
        status = admin("GET", "/admin/status")
        assert status["state"] == "ready"
        assert status["endpoint"]
        assert not list(app.home.state.glob("*.new"))
        app.home.endpoint_file.rmdir()
