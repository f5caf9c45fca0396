"""The whole app on a real X server with the real engine: the memory page, and the way out."""

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ui.x11_desktop import PROGRAMS, WAIT_S, Desktop, wait_for

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        sys.platform != "linux" or any(shutil.which(name) is None for name in PROGRAMS),
        reason="needs " + ", ".join(PROGRAMS),
    ),
]

CONTEXT = "model.context_tokens"
PARTS = ("weights", "kv", "compute", "output", "cache", "overhead")


@pytest.fixture
def desktop(tmp_path: Path, smollm2: Path) -> Iterator[Desktop]:
    models = tmp_path / "home" / "data" / "models"
    models.mkdir(parents=True)
    (models / "smollm2.gguf").symlink_to(smollm2)
    made = Desktop(tmp_path)
    try:
        yield made
    finally:
        made.close()


class _Stream(threading.Thread):
    """One streamed answer of a set length; `text` grows while it runs."""

    def __init__(self, url: str, tokens: int) -> None:
        super().__init__(name="stream")
        body = {
            "model": "smollm2",
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "Tell me of the sea."}],
        }
        self._request = urllib.request.Request(
            f"{url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        self.text = ""
        self.error = ""

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self._request, timeout=120) as answer:
                for line in answer:
                    self.text += line.decode()
        except OSError as error:
            self.error = str(error)

    def has_begun(self) -> bool:
        return '"content":' in self.text

    @property
    def is_whole(self) -> bool:
        return '"finish_reason":"length"' in self.text and "data: [DONE]" in self.text


def _coolhead(desktop: Desktop, *argv: str) -> Any:
    told = subprocess.run(
        [sys.executable, "-m", "app", *argv, "--json"],
        env=desktop.env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return json.loads(told.stdout or "{}")


def _endpoint(desktop: Desktop) -> str:
    path = desktop.folder / "home" / "state" / "endpoint.json"

    def url() -> str | None:
        found: str | None = json.loads(path.read_text())["url"] if path.exists() else None
        return found

    return wait_for("the endpoint", url)


def _hold(desktop: Desktop, key: str) -> dict[str, Any]:
    """The field once the window holds still and the model is priced."""

    def look() -> dict[str, Any] | None:
        fields = desktop.seen().get("fields", {})
        return fields.get(key) if fields.get("fits") is not None else None

    def still() -> dict[str, Any] | None:
        before = look()
        time.sleep(0.4)
        return before if before is not None and before == look() else None

    return wait_for(f"the field {key}", still)


def _contexts(desktop: Desktop) -> list[int]:
    status = _coolhead(desktop, "status")
    return [one["context_tokens"] for one in status.get("workers", []) if one["state"] == "ready"]


def test_memory_page_bar_equals_the_plan_and_apply_waits_for_the_stream(desktop: Desktop) -> None:
    desktop.start_panel()
    tray = desktop.start_tray(program="real_program")
    url = _endpoint(desktop)
    first = _Stream(url, 8)
    first.start()
    first.join()
    assert first.is_whole, first.error + first.text[-500:] + desktop.log()
    desktop.choose("Memory…")
    field = _hold(desktop, CONTEXT)
    plan = _coolhead(desktop, "plan", "smollm2")
    for device in plan["devices"]:
        bar = desktop.seen()["bars"][device["device"]]
        assert {part: bar[f"{part}_bytes"] for part in PARTS} == {
            part: device[f"{part}_bytes"] for part in PARTS
        }
    assert desktop.seen()["bars"]["RAM"]["taken_bytes"] > 0

    stream = _Stream(url, 120)
    stream.start()
    wait_for("the stream's first words", stream.has_begun)
    left, right = field["left"], field["right"]
    desktop.drag(field["handle"], [left[0] + (right[0] - left[0]) // 4, left[1]])
    wait_for("another figure", lambda: "auto" not in _hold(desktop, CONTEXT)["text"])
    wanted = int(_hold(desktop, CONTEXT)["text"].split()[0].replace(",", ""))
    desktop.click(*desktop.seen()["windows"]["Panel"]["Apply"])
    stream.join(120)
    assert stream.is_whole, stream.error + stream.text[-500:]
    wait_for("the model with its new context", lambda: _contexts(desktop) == [wanted])
    assert str(wanted) in (desktop.folder / "home" / "config" / "settings.yaml").read_text()

    last = _Stream(url, 2000)
    last.start()
    wait_for("the last stream's first words", last.has_begun)
    family = psutil.Process(tray.pid).children(recursive=True)
    assert len(family) >= 2
    desktop.choose("Quit")
    began_s = time.monotonic()
    tray.wait(WAIT_S)
    took_s = time.monotonic() - began_s
    last.join(WAIT_S)
    assert tray.returncode == 0, desktop.log()
    assert took_s < 5
    assert not last.is_whole
    assert [child for child in family if child.is_running()] == []


def test_requests_go_on_while_the_gui_stalls_and_a_slot_fails(desktop: Desktop) -> None:
    desktop.start_panel()
    desktop.start_tray(program="real_program")
    url = _endpoint(desktop)
    desktop.wait_for_icon()
    first = _Stream(url, 4)
    first.start()
    first.join()
    (desktop.folder / "stall.new").write_text("10")
    (desktop.folder / "stall.new").rename(desktop.folder / "stall")
    wait_for("the stall", (desktop.folder / "stalled").exists)
    stream = _Stream(url, 8)
    stream.start()
    stream.join()
    assert stream.is_whole, stream.error + stream.text[-500:]
    assert not (desktop.folder / "stall_over").exists()
    log = desktop.folder / "home" / "logs" / "coolhead.log"
    wait_for("the stall in the log", lambda: "GUI thread is stalled" in log.read_text())
    wait_for("the traceback", lambda: "a slot failed on purpose" in log.read_text())
    assert "in _stall_once" in log.read_text()
    again = _Stream(url, 4)
    again.start()
    again.join()
    assert again.is_whole, again.error
    desktop.choose("Quit")


def test_second_start_raises_the_window_and_quit_while_loading_is_clean(desktop: Desktop) -> None:
    desktop.start_panel()
    tray = desktop.start_tray(program="real_program")
    url = _endpoint(desktop)
    desktop.wait_for_icon()
    second = subprocess.run(
        [sys.executable, "-m", "app"], env=desktop.env, capture_output=True, timeout=60, check=False
    )
    assert second.returncode == 0, second.stderr
    wait_for("the window", lambda: "Panel" in desktop.seen().get("windows", {}))
    stream = _Stream(url, 8)
    stream.start()
    process = psutil.Process(tray.pid)
    wait_for("the load", lambda: len(process.children(recursive=True)) >= 2)
    family = process.children(recursive=True)
    desktop.choose("Quit")
    began_s = time.monotonic()
    tray.wait(WAIT_S)
    assert time.monotonic() - began_s < 5
    assert tray.returncode == 0, desktop.log()
    stream.join(WAIT_S)
    wait_for("the workers' end", lambda: not [child for child in family if child.is_running()])


def test_killed_app_leaves_nothing_and_starts_again_with_one_icon(desktop: Desktop) -> None:
    desktop.start_panel()
    tray = desktop.start_tray(program="real_program")
    stream = _Stream(_endpoint(desktop), 8)
    stream.start()
    stream.join()
    family = psutil.Process(tray.pid).children(recursive=True)
    assert len(family) >= 2
    desktop.end(tray)
    wait_for("the workers' end", lambda: not [child for child in family if child.is_running()])
    again = desktop.start_tray(program="real_program")
    desktop.wait_for_icon()
    wait_for("an endpoint of its own", lambda: _coolhead(desktop, "status").get("pid") == again.pid)
    assert len(desktop.icons()) == 1
    desktop.choose("Quit")
    again.wait(WAIT_S)
    assert again.returncode == 0, desktop.log()
