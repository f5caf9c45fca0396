"""A real Coolhead after a kill -9, after three kills for memory and without its GPU; verbs that hold and load."""

import json
import time
from pathlib import Path

import pytest

from app.core.hardware.last_seen import remember_gpus
from app.core.hardware.machine import Gpu, Machine
from app.core.lifecycle import ExitCause
from app.core.paths import Paths
from app.guard.safe_mode import KillLog
from tests.e2e.app_process import AppProcess, install_model, run_cli, wait_for


def notices(app: AppProcess) -> list[str]:
    text = app.home.events_file.read_text() if app.home.events_file.exists() else ""
    rows = [json.loads(line) for line in text.splitlines()]
    return [row["text"] for row in rows if row["event"] == "Notice"]


@pytest.mark.real
def test_start_after_a_kill_serves_smaller_says_so_and_is_undone(
    coolhead_home: Paths, smollm2: Path
) -> None:
    install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        assert app.chat("Hello")[0] == 200
        whole = app.status()["workers"][0]
        assert not app.status()["is_safe_mode"]
        app.look()
        app.process.kill()
        app.process.wait()
        app.assert_gone()
    with AppProcess(coolhead_home) as again:
        assert again.status()["is_safe_mode"]
        status, answer = again.chat("Hello")
        assert status == 200, answer
        less = again.status()["workers"][0]
        size = less["context_tokens"] * less["slots"]
        assert size < whole["context_tokens"] * whole["slots"]
        wait_for(lambda: notices(again), what="a notice")
        assert "quiet preset" in notices(again)[0]
        left = run_cli("safe-mode", "leave", home=coolhead_home)
        assert left.returncode == 0, left.stderr

        def is_whole() -> bool:
            workers = again.status()["workers"]
            return bool(workers) and workers[0]["context_tokens"] == whole["context_tokens"]

        wait_for(is_whole, what="the model at its full size")
        assert not again.status()["is_safe_mode"]
        again.look()
    with AppProcess(coolhead_home) as third:
        assert not third.status()["is_safe_mode"]


@pytest.mark.real
def test_start_after_three_kills_loads_nothing_until_a_load_by_hand(
    coolhead_home: Paths, smollm2: Path
) -> None:
    model_id = install_model(coolhead_home, smollm2)
    kills = KillLog(coolhead_home.state)
    for _ in range(3):
        kills.record(ExitCause.CAP_EXCEEDED, model_id, "It passed its cap.")
    with AppProcess(coolhead_home) as app:
        status, answer = app.chat("Hello")
        assert status == 503
        assert "coolhead load" in json.dumps(answer)
        assert app.status()["is_safe_mode"]
        assert run_cli("load", "no-such-model", home=coolhead_home).returncode == 1
        assert app.chat("Hello")[0] == 503
        loaded = run_cli("load", model_id, home=coolhead_home)
        assert loaded.returncode == 0, loaded.stderr
        assert "tokens" in loaded.stdout
        assert app.chat("Hello")[0] == 200
        app.look()


@pytest.mark.real
def test_start_without_the_gpu_of_last_time_asks_before_it_loads(
    coolhead_home: Paths, smollm2: Path
) -> None:
    install_model(coolhead_home, smollm2)
    card = Gpu("CUDA0", "RTX 9999", 1 << 34, 1 << 34, uuid="GPU-gone")
    remember_gpus(coolhead_home, Machine(1, 1, gpus=(card,)))
    with AppProcess(coolhead_home) as app:
        status, answer = app.chat("Hello")
        assert status == 503
        assert "RTX 9999" in json.dumps(answer)
        assert run_cli("safe-mode", "leave", home=coolhead_home).returncode == 0
        assert app.chat("Hello")[0] == 200
        app.look()


@pytest.mark.real
def test_verbs_pause_resume_load_and_unload(coolhead_home: Paths, smollm2: Path) -> None:
    model_id = install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        assert run_cli("pause", home=coolhead_home).returncode == 0
        assert app.chat("Hello")[0] == 503
        assert app.status()["state"] == "paused"
        assert run_cli("resume", home=coolhead_home).returncode == 0
        assert app.status()["state"] == "ready"
        unknown = run_cli("load", "no-such-model", home=coolhead_home)
        assert unknown.returncode == 1
        assert model_id in unknown.stderr
        assert run_cli("load", model_id, home=coolhead_home).returncode == 0
        assert app.status()["workers"][0]["state"] == "ready"
        app.look()
        unloaded = run_cli("unload", model_id, home=coolhead_home)
        assert unloaded.returncode == 0, unloaded.stderr
        assert app.status()["workers"][0]["state"] == "unloaded"
        assert run_cli("unload", model_id, home=coolhead_home).returncode == 1


@pytest.mark.real
def test_verb_load_of_what_does_not_fit_ends_with_three(
    coolhead_home: Paths, smollm2: Path
) -> None:
    model_id = install_model(coolhead_home, smollm2)
    coolhead_home.settings_file.write_text("memory:\n  ram_cap_bytes: 1048576\n")
    with AppProcess(coolhead_home):
        refused = run_cli("load", model_id, home=coolhead_home)
    assert refused.returncode == 3, refused.stderr
    assert "does not fit" in refused.stderr


def test_setting_autostart_writes_the_entry_and_takes_it_away(
    coolhead_home: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "xdg"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config))
    with AppProcess(coolhead_home):
        assert not list(config.glob("autostart/*"))
        done = run_cli("settings", "set", "desktop.autostart", "true", home=coolhead_home)
        assert done.returncode == 0, done.stderr
        (entry,) = config.glob("autostart/*.desktop")
        assert f"COOLHEAD_HOME={coolhead_home.config.parent}" in entry.read_text()
    entry.unlink()
    with AppProcess(coolhead_home):
        wait_for(entry.exists, what="the entry to be written again at a start")
    done = run_cli("settings", "set", "desktop.autostart", "false", home=coolhead_home)
    assert done.returncode == 0, done.stderr
    assert not entry.exists()


def test_setting_full_screen_without_a_display_is_said_to_be_of_no_use(
    coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("XDG_SESSION_TYPE", raising=False)
    with AppProcess(coolhead_home) as app:
        started = time.monotonic()
        done = run_cli(
            "settings", "set", "desktop.pause_on_full_screen", "true", home=coolhead_home
        )
        assert done.returncode == 0, done.stderr
        wait_for(lambda: "no display" in " ".join(app.status()["problems"]), what="the problem")
        print(f"said after {time.monotonic() - started:.1f} s")
        assert app.status()["state"] == "ready"
