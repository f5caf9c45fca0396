"""`coolhead ask`, as the README's first command runs it, once the starter model is there."""

import re
from pathlib import Path

import psutil
import pytest

from app.core.paths import Paths
from tests.e2e.app_process import AppProcess, install_model, run_cli

pytestmark = pytest.mark.real


def test_ask_answers_shows_all_figures_and_leaves_nothing(
    coolhead_home: Paths, smollm2: Path
) -> None:
    install_model(coolhead_home, smollm2)
    result = run_cli(
        "ask", "What is the capital of France?", "--max-tokens", "32", home=coolhead_home
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()[0]) > 10
    last = result.stdout.strip().splitlines()[-1]
    for figure in (r"\d+ tokens", r"tokens/s", r"first token after", r"planned", r"taken", r"cap"):
        assert re.search(figure, last), last
    assert not coolhead_home.endpoint_file.exists()
    home = str(coolhead_home.config.parent)
    left = [process for process in psutil.process_iter() if _home_of(process) == home]
    assert left == []


def _home_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("COOLHEAD_HOME", "") if "app" in process.cmdline() else ""
    except (psutil.Error, OSError):
        return ""


def test_ask_uses_the_running_app(coolhead_home: Paths, smollm2: Path) -> None:
    install_model(coolhead_home, smollm2)
    with AppProcess(coolhead_home) as app:
        result = run_cli("ask", "Say hello.", "--max-tokens", "8", "--json", home=coolhead_home)
        assert result.returncode == 0, result.stderr
        assert app.status()["workers"][0]["state"] == "ready"
        app.look()


def test_ask_for_an_unknown_model_lists_the_known(coolhead_home: Paths, smollm2: Path) -> None:
    model_id = install_model(coolhead_home, smollm2)
    result = run_cli("ask", "Hello", "--model", "nonesuch", home=coolhead_home)
    assert result.returncode == 1
    assert model_id in result.stderr
    assert "Traceback" not in result.stderr
