"""Whether a desktop shows icons, asked of real panels of both kinds."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import doctor
from app.cli.findings import Grade
from app.core.hardware.tray_host import has_tray_host
from tests.ui.x11_desktop import PROGRAMS, Desktop, wait_for

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


def test_tray_host_of_each_kind_is_found_and_missed_when_gone(desktop: Desktop) -> None:
    assert not has_tray_host(desktop.env)
    panel = desktop.start_panel()
    wait_for("the panel's tray", lambda: has_tray_host(desktop.env))
    desktop.end(panel)
    wait_for("its end", lambda: not has_tray_host(desktop.env))
    notifier, _ = desktop.start_notifier_panel()
    wait_for("the name on the bus", lambda: has_tray_host(desktop.env))
    desktop.end(notifier)
    wait_for("its end", lambda: not has_tray_host(desktop.env))


def test_doctor_says_whether_icons_are_shown(
    desktop: Desktop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, desktop.env[name])
    for name in ("WAYLAND_DISPLAY", "QT_QPA_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    without = doctor._tray()
    assert without.grade is Grade.NOTE
    assert "window stands in" in without.text
    desktop.start_panel()
    wait_for("the tray", lambda: doctor._tray().grade is Grade.OK)


def test_tray_host_without_display_or_bus_is_none() -> None:
    assert not has_tray_host({})
    nowhere = {"DISPLAY": ":6543", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere/bus"}
    assert not has_tray_host(nowhere)
