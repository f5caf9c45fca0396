"""The tray on a real X server with a real panel, by a real mouse."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.ui.x11_desktop import PROGRAMS, WAIT_S, Desktop, wait_for

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or any(shutil.which(name) is None for name in PROGRAMS),
    reason="needs " + ", ".join(PROGRAMS),
)


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Desktop]:
    made = Desktop(tmp_path)
    try:
        yield made
    finally:
        made.close()


def _wait_for_exit(tray: subprocess.Popen[bytes]) -> float:
    began_s = time.monotonic()
    tray.wait(WAIT_S)
    return time.monotonic() - began_s


def test_tray_menu_by_mouse_starts_pauses_stops_and_quits(desktop: Desktop) -> None:
    desktop.start_panel()
    tray = desktop.start_tray()
    desktop.wait_for_icon()
    assert "Stopped" in desktop.open_menu()["menu"]
    desktop.click(*desktop.seen()["menu"]["Start"])
    desktop.wait_for_command("Start()")
    menu = desktop.open_menu()
    assert any(title.startswith("Ready") for title in menu["menu"])
    assert menu["checked"] == []
    desktop.click(*menu["menu"]["Pause new requests"])
    desktop.wait_for_command("Pause(is_paused=True)")
    menu = desktop.open_menu()
    assert menu["checked"] == ["Pause new requests"]
    desktop.click(*menu["menu"]["Pause new requests"])
    desktop.wait_for_command("Pause(is_paused=False)")
    desktop.choose("Stop")
    desktop.wait_for_command("Stop()")
    resident_bytes = psutil.Process(tray.pid).memory_info().rss
    assert resident_bytes < 140 * 1024 * 1024
    desktop.choose("Quit")
    assert _wait_for_exit(tray) < 5 + 2  # the promise, and a slow machine's start of the clock
    assert tray.returncode == 0, desktop.log()
    assert desktop.commands().splitlines()[-1] == "Quit()"


def test_tray_panel_killed_and_started_again_brings_the_icon_back(desktop: Desktop) -> None:
    panel = desktop.start_panel()
    desktop.start_tray()
    wait_for("the tray", lambda: "has a tray" in desktop.log())
    desktop.wait_for_icon()
    desktop.end(panel)
    wait_for("the tray's end", lambda: "tray is gone" in desktop.log())
    assert desktop.icon() is None
    desktop.start_panel()
    desktop.wait_for_icon()
    desktop.choose("Start")
    desktop.wait_for_command("Start()")


def test_tray_notifier_panel_late_or_again_gets_one_icon(desktop: Desktop) -> None:
    desktop.start_tray()
    wait_for("the stand-in window", lambda: "a window stands in" in desktop.log())
    for _ in range(2):
        panel, told = desktop.start_notifier_panel()
        wait_for("the icon's registration", told.read_text)
        wait_for("the window's end", lambda: "StandInWindow" not in desktop.seen()["windows"])
        time.sleep(1.5)  # a second registration would come with the next look for a panel
        assert len(told.read_text().splitlines()) == 1
        gone = desktop.log().count("tray is gone")
        desktop.end(panel)
        wait_for("the tray's end", lambda: desktop.log().count("tray is gone") > gone)  # noqa: B023


def test_tray_without_host_a_window_serves_and_goes_when_one_comes(desktop: Desktop) -> None:
    tray = desktop.start_tray()

    def buttons() -> dict[str, list[int]] | None:
        found: dict[str, list[int]] | None = desktop.seen().get("windows", {}).get("StandInWindow")
        return found

    window = wait_for("the stand-in window", buttons)
    time.sleep(0.5)  # the window manager moves a new window once it has its frame
    window = wait_for("the stand-in window", buttons)
    desktop.click(*window["Start"])
    desktop.wait_for_command("Start()")
    desktop.start_panel()
    desktop.wait_for_icon()
    wait_for("the window's end", lambda: not buttons())
    tray.send_signal(signal.SIGTERM)
    _wait_for_exit(tray)
    assert tray.returncode == 0, desktop.log()
    assert "Quit()" in desktop.commands()


def test_tray_stalled_and_failing_slots_are_logged_and_it_goes_on(desktop: Desktop) -> None:
    desktop.start_panel()
    desktop.start_tray("--stall", "--raise", "--notice")
    desktop.wait_for_icon()
    wait_for("the stall in the log", lambda: "GUI thread is stalled" in desktop.log())
    wait_for("the traceback", lambda: "a slot failed on purpose" in desktop.log())
    assert "after_start" in desktop.log()
    desktop.choose("Start")
    desktop.wait_for_command("Start()")


def test_panel_by_mouse_into_the_red_and_back_and_applied(desktop: Desktop) -> None:
    desktop.start_panel()
    desktop.start_tray()
    desktop.choose("Memory…")
    key = "model.context_tokens"

    def field() -> dict[str, Any] | None:
        fields = desktop.seen().get("fields", {})
        return fields.get(key) if fields.get("fits") is not None else None

    first = wait_for("the memory page", field)
    settled = wait_for("the window's place", lambda: _same_twice(field))
    assert first["text"].startswith("auto: ")
    desktop.drag(settled["handle"], settled["right"])
    wait_for("the red", lambda: desktop.seen()["fields"]["fits"] is False)
    wait_for("the way out", lambda: "largest that fits" in (field() or {"hint": ""})["hint"])
    wrong = wait_for("the slider's end", lambda: _same_twice(field))
    left, right = wrong["left"], wrong["right"]
    desktop.drag(wrong["handle"], [left[0] + (right[0] - left[0]) // 10, left[1]])
    wait_for("black figures", lambda: desktop.seen()["fields"]["fits"] is True)
    desktop.click(*desktop.seen()["windows"]["Panel"]["Apply"])
    desktop.wait_for_command("ApplySettings")
    told = desktop.commands().split("model.context_tokens': ")[1]
    assert 512 <= int(told.split("}")[0]) < 40_000


def _same_twice(look: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """What is seen once it holds still: the window manager moves a new window."""
    before = look()
    time.sleep(0.4)
    return before if before is not None and before == look() else None
