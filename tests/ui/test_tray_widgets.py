"""Actions, notices and the way out, off screen."""

import logging
import sys
import time
from pathlib import Path

import pytest
from PySide6.QtGui import QGuiApplication, QImage
from pytestqt.qtbot import QtBot

from app.core.events import Notice, WindowRequested
from app.core.handle import Pause, Quit, Start, Stop
from app.core.hardware.display import display_available
from app.core.lifecycle import AppState
from app.ui import qt_log
from app.ui.actions import Actions
from app.ui.bridge import Bridge
from app.ui.icons import state_icon
from app.ui.leaving import Leaving
from app.ui.stall_watch import StallWatch
from app.ui.tray import Tray
from app.ui.view_state import Entry, IconKind
from tests.ui.stand_in_core import StandInCore

WAIT_MS = 20_000


def _image(kind: IconKind, size: int) -> QImage:
    return state_icon(kind).pixmap(size, size).toImage()


def test_icons_differ_by_shape_in_every_size(qtbot: QtBot) -> None:
    for size in (16, 22, 48):
        greys = []
        for kind in IconKind:
            image = _image(kind, size).convertToFormat(QImage.Format.Format_Grayscale8)
            greys.append(bytes(image.constBits()))
        assert len(set(greys)) == len(IconKind)


def test_actions_pause_check_mark_waits_for_the_core(core: StandInCore, qtbot: QtBot) -> None:
    bridge = Bridge(core.handle)
    actions = Actions(bridge, Path())
    actions.entries[Entry.START].trigger()
    qtbot.waitUntil(actions.entries[Entry.PAUSE].isEnabled, timeout=WAIT_MS)
    assert core.received(Start)
    actions.entries[Entry.PAUSE].trigger()
    assert actions.entries[Entry.PAUSE].isChecked() in {False, core.handle.snapshot.is_paused}
    qtbot.waitUntil(actions.entries[Entry.PAUSE].isChecked, timeout=WAIT_MS)
    assert core.received(Pause) == [Pause(True)]
    actions.entries[Entry.COPY].trigger()
    assert QGuiApplication.clipboard().text() == "http://127.0.0.1:8555/v1"
    actions.entries[Entry.STOP].trigger()
    qtbot.waitUntil(lambda: actions.state.icon is IconKind.STOPPED, timeout=WAIT_MS)
    assert core.received(Stop)
    bridge.close()


@pytest.mark.qt_log_ignore("systemTrayWindowChanged")  # the off-screen platform has no panel
def test_tray_notices_of_one_cause_are_said_once(core: StandInCore, qtbot: QtBot) -> None:
    bridge = Bridge(core.handle)
    actions = Actions(bridge, Path())
    tray = Tray(bridge, actions)
    asked: list[str] = []
    actions.panel_asked.connect(asked.append)
    core.publish(Notice("ram", "Stopped", "first"), Notice("ram", "Stopped", "second"))
    core.publish(WindowRequested())
    qtbot.waitUntil(lambda: bool(asked), timeout=WAIT_MS)
    assert tray.window._notice.text() == "Stopped\nfirst"
    bridge.close()
    tray.close()


def test_leaving_core_that_answers_gives_0(core: StandInCore, qtbot: QtBot) -> None:
    bridge = Bridge(core.handle)
    leaving = Leaving(bridge)
    core.quit_takes_s = 0.8
    with qtbot.waitSignal(leaving.left, timeout=WAIT_MS) as left:
        leaving.begin()
        leaving.begin()
        qtbot.waitUntil(lambda: leaving._dialog is not None, timeout=WAIT_MS)
    assert left.args == [0]
    assert core.received(Quit) == [Quit()]
    bridge.close()


def test_leaving_core_that_hangs_gives_1_before_five_seconds(
    core: StandInCore, qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.ui import leaving as module

    assert module.DEADLINE_MS < 5000
    monkeypatch.setattr(module, "DEADLINE_MS", 300)
    bridge = Bridge(core.handle)
    leaving = Leaving(bridge)
    core.hangs_on_quit = True
    with qtbot.waitSignal(leaving.left, timeout=WAIT_MS) as left:
        leaving.begin()
    assert left.args == [1]
    bridge.close()
    assert core.handle.snapshot.state is AppState.STOPPING


def test_stall_watch_gui_that_hangs_is_logged_with_its_place(
    qtbot: QtBot, caplog: pytest.LogCaptureFixture
) -> None:
    watch = StallWatch(stalled_s=0.2)
    with caplog.at_level(logging.WARNING):
        deadline_s = time.monotonic() + 20
        while "is stalled" not in caplog.text and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert "test_stall_watch_gui_that_hangs" in caplog.text
        qtbot.waitUntil(lambda: "goes on" in caplog.text, timeout=WAIT_MS)
    watch.close()


def test_qt_log_exception_is_logged_and_hook_given_back(caplog: pytest.LogCaptureFixture) -> None:
    before = sys.excepthook
    give_back = qt_log.capture()
    try:
        raise ValueError("on purpose")
    except ValueError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        give_back()
    assert sys.excepthook is before
    assert "on purpose" in caplog.text


def test_display_available_without_one_says_so() -> None:
    if sys.platform != "linux":
        pytest.skip("the variables are those of Linux")
    assert "neither DISPLAY" in (display_available({}) or "")
    assert "does not answer" in (display_available({"DISPLAY": ":6543"}) or "")
    assert "does not answer" in (display_available({"DISPLAY": "nonsense"}) or "")
    assert display_available({"QT_QPA_PLATFORM": "offscreen"}) is None
    assert display_available({"WAYLAND_DISPLAY": "wayland-7", "XDG_RUNTIME_DIR": "/nowhere"})
