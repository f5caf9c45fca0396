"""A full-screen window on a real X server is seen, and its end as well."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.core.hardware.full_screen import FullScreen, read_full_screen
from app.core.paths import Paths
from tests.e2e.app_process import AppProcess

PROGRAM = """
import sys
from PySide6.QtWidgets import QApplication, QWidget
app = QApplication([])
window = QWidget()
window.showFullScreen() if sys.argv[1] == "full" else window.show()
app.exec()
"""
needs_x11 = pytest.mark.skipif(
    not (shutil.which("Xvfb") and shutil.which("openbox")), reason="needs Xvfb and openbox"
)


@pytest.fixture
def display(tmp_path: Path) -> Iterator[str]:
    read, write = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", "640x480x24", "-nolisten", "tcp"],
        pass_fds=(write,),
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as pipe:
        name = ":" + pipe.readline().strip()
    env = {**os.environ, "DISPLAY": name, "HOME": str(tmp_path)}
    manager = subprocess.Popen(["openbox"], env=env, stderr=subprocess.DEVNULL)
    yield name
    for process in (manager, server):
        process.terminate()
        process.wait(20)


def shown(display: str, how: str) -> "subprocess.Popen[bytes]":
    env = {**os.environ, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb"}
    env.pop("WAYLAND_DISPLAY", None)
    return subprocess.Popen([sys.executable, "-c", PROGRAM, how], env=env)


def wait_for(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def active_window(display: str) -> bool:
    told = subprocess.run(
        ["xprop", "-display", display, "-root", "_NET_ACTIVE_WINDOW"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "# 0x" in told.stdout and "# 0x0" not in told.stdout


@needs_x11
def test_full_screen_window_is_seen_and_its_end(display: str) -> None:
    def look() -> FullScreen:
        return read_full_screen({"DISPLAY": display})

    assert look() == FullScreen(False)
    with shown(display, "plain") as plain:
        wait_for(lambda: active_window(display))
        assert look() == FullScreen(False)
        with shown(display, "full") as full:
            wait_for(lambda: look().is_full_screen)
            started = time.monotonic()
            for _ in range(20):
                assert look().is_full_screen
            print(f"one look takes {(time.monotonic() - started) / 20 * 1000:.2f} ms")
            full.kill()
            wait_for(lambda: not look().is_full_screen)
        plain.kill()
    assert look().problem == ""


@needs_x11
def test_full_screen_window_pauses_the_app_until_it_is_gone_or_the_user_resumes(
    display: str, coolhead_home: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("XDG_SESSION_TYPE", raising=False)
    coolhead_home.settings_file.write_text("desktop:\n  pause_on_full_screen: true\n")
    with AppProcess(coolhead_home) as app, shown(display, "full") as full:
        wait_for(lambda: app.status()["state"] == "paused")
        assert "full-screen" in app.status()["pause_sentence"]
        status, answer = app.chat("Hello")
        assert (status, "full-screen" in str(answer)) == (503, True)
        token = {"Authorization": f"Bearer {coolhead_home.token_file.read_text()}"}
        assert app.call("POST", "/admin/resume", {}, headers=token)[0] == 200
        assert app.status()["state"] == "ready"
        full.kill()
        full.wait()
        wait_for(lambda: not read_full_screen({"DISPLAY": display}).is_full_screen)
        assert app.status()["state"] == "ready"
