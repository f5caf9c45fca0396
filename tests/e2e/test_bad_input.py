"""Bad input gets a clear error and loses nothing."""

import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from app.core.paths import Paths
from tests.e2e.app_process import AppProcess, install_model, run_cli

pytestmark = pytest.mark.real

MESSAGES = [{"role": "user", "content": "Hello"}]


def _error(answer: Any) -> dict[str, Any]:
    assert isinstance(answer, dict), answer
    error = answer["error"]
    assert isinstance(error, dict)
    assert error["message"]
    return error


def test_bad_requests_are_named_and_the_app_goes_on(coolhead_home: Paths, smollm2: Path) -> None:
    model_id = install_model(coolhead_home, smollm2)
    broken = coolhead_home.models / "broken.gguf"
    broken.write_bytes(smollm2.read_bytes()[: 5 * 1024 * 1024])
    (coolhead_home.models / "notes.gguf").write_text("this is not a model")
    with AppProcess(coolhead_home) as app:
        path = "/v1/chat/completions"
        status, answer = app.call("POST", path, raw=b"{not json")
        assert status == 400
        assert "JSON" in _error(answer)["message"]

        status, answer = app.call("POST", path, raw=b"\xff\xfe\x00")
        assert status == 400

        status, answer = app.call("POST", path, {"model": 5, "messages": "x"})
        assert status == 400, answer

        status, answer = app.call(
            "POST", path, {"model": "auto", "messages": [], "max_tokens": "x"}
        )
        assert status == 400, answer

        status, answer = app.call("POST", path, {"model": "nonesuch", "messages": MESSAGES})
        assert status == 404
        assert model_id in _error(answer)["message"]

        long_text = "word " * 60_000
        status, answer = app.chat(long_text)
        assert status == 400, answer
        assert _error(answer)["code"] == "context_length_exceeded"
        context = app.status()["workers"][0]["context_tokens"]
        assert str(context) in _error(answer)["message"]

        status, answer = app.call("GET", "/v1/nowhere")
        assert status == 404
        status, answer = app.call("GET", path)
        assert status == 405

        status, answer = app.call(
            "POST", path, raw=b"model=auto", headers={"Content-Type": "text/plain"}
        )
        assert status == 415, answer
        status, answer = app.call("GET", "/v1/models", headers={"Host": "evil.example"})
        assert status == 403
        status, answer = app.call("GET", "/v1/models", headers={"Origin": "http://evil.example"})
        assert status == 403
        status, answer = app.call("GET", "/admin/status")
        assert status in {401, 403}

        for name in ("broken", "notes"):
            status, answer = app.call("POST", path, {"model": name, "messages": MESSAGES})
            assert status == 422, answer
            assert name in _error(answer)["message"]

        assert app.chat("Hello")[0] == 200
        app.look()


def test_model_file_that_vanished_is_named(coolhead_home: Paths, smollm2: Path) -> None:
    install_model(coolhead_home, smollm2)
    gone = coolhead_home.models / "gone.gguf"
    shutil.copy(smollm2, gone)
    with AppProcess(coolhead_home) as app:
        assert "gone" in str(app.call("GET", "/v1/models")[1])
        gone.unlink()
        status, answer = app.call(
            "POST", "/v1/chat/completions", {"model": "gone", "messages": MESSAGES}
        )
        assert status == 404, answer
        assert "gone" in _error(answer)["message"]
        assert app.chat("Hello")[0] == 200
        app.look()


def test_port_in_use_names_who_holds_it(coolhead_home: Paths) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_cli("--headless", "--port", str(port), home=coolhead_home)
    assert result.returncode == 1
    assert str(port) in result.stderr
    assert str(os.getpid()) in result.stderr


def test_listening_beyond_loopback_is_refused(coolhead_home: Paths) -> None:
    coolhead_home.settings_file.write_text("server:\n  listen: 0.0.0.0\n")
    with AppProcess(coolhead_home) as app:
        told = app.status()
        assert told["endpoint"].startswith("http://127.0.0.1:")
        assert "0.0.0.0" in told["problems"][0]
        result = run_cli("settings", "set", "server.listen", "0.0.0.0", home=coolhead_home)
        assert result.returncode == 1
        assert "one of 127.0.0.1, ::1, localhost" in result.stderr


def test_state_folder_that_is_a_file_is_named(coolhead_home: Paths) -> None:
    shutil.rmtree(coolhead_home.state)
    coolhead_home.state.write_text("")
    result = run_cli("status", home=coolhead_home)
    assert result.returncode == 1
    result = run_cli("--headless", home=coolhead_home)
    assert result.returncode == 1
    assert str(coolhead_home.state) in result.stderr
    assert "Traceback" not in result.stderr
