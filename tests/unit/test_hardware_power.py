"""Battery and full-screen programs: what each system tells, and what it does not."""

import ctypes
from pathlib import Path
from typing import Any

import pytest

from app.core.hardware import (
    full_screen,
    full_screen_windows,
    full_screen_x11,
    power_linux,
    power_macos,
    power_windows,
)
from app.core.hardware.power import read_power


def supply(folder: Path, name: str, **files: str) -> None:
    (folder / name).mkdir(parents=True)
    for key, value in files.items():
        (folder / name / key).write_text(value + "\n")


def test_power_on_linux_without_a_battery_is_mains(tmp_path: Path) -> None:
    assert not power_linux.read(tmp_path / "none").is_on_battery
    assert not power_linux.read(tmp_path).is_on_battery
    assert not read_power().problem


def test_power_on_linux_discharging_without_mains_is_battery(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "BAT0", type="Battery", status="Discharging", scope="System")
    assert power_linux.read(tmp_path).is_on_battery


def test_power_on_linux_with_any_mains_is_mains(tmp_path: Path) -> None:
    supply(tmp_path, "AC", type="Mains", online="0")
    supply(tmp_path, "BAT0", type="Battery", status="Discharging")
    supply(tmp_path, "ucsi", type="USB", online="1")
    assert not power_linux.read(tmp_path).is_on_battery


def test_power_on_linux_battery_of_a_mouse_does_not_count(tmp_path: Path) -> None:
    supply(tmp_path, "hidpp_battery_0", type="Battery", status="Discharging", scope="Device")
    assert not power_linux.read(tmp_path).is_on_battery
    supply(tmp_path, "ups", type="UPS", status="Discharging")
    assert power_linux.read(tmp_path).is_on_battery


def test_power_on_linux_charging_is_mains(tmp_path: Path) -> None:
    supply(tmp_path, "BAT0", type="Battery", status="Charging")
    assert not power_linux.read(tmp_path).is_on_battery


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Now drawing from 'Battery Power'\n -InternalBattery-0 80%; discharging;\n", True),
        ("Now drawing from 'AC Power'\n -InternalBattery-0 80%; charging;\n", False),
        ("Now drawing from 'UPS Power'\n", True),
        ("", False),
    ],
)
def test_power_on_macos_is_what_pmset_says(text: str, expected: bool) -> None:
    assert power_macos.parse(text).is_on_battery is expected


def test_power_on_macos_without_pmset_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_macos, "PMSET", ("/no/such/pmset",))
    assert "cannot be told" in power_macos.read().problem


class FakeKernel32:
    def __init__(self, status: int, succeeds: int = 1) -> None:
        self.status, self.succeeds = status, succeeds

    def GetSystemPowerStatus(self, pointer: Any) -> int:  # noqa: N802 - Windows' own name
        pointer._obj.ac_line_status = self.status
        return self.succeeds


def test_power_on_windows_is_the_line_status() -> None:
    assert ctypes.sizeof(power_windows.SystemPowerStatus) == 12
    assert power_windows.read(FakeKernel32(0)).is_on_battery
    assert not power_windows.read(FakeKernel32(1)).is_on_battery
    assert not power_windows.read(FakeKernel32(255)).is_on_battery
    assert power_windows.read(FakeKernel32(0, succeeds=0)).problem


class FakeShell32:
    def __init__(self, state: int, result: int = 0) -> None:
        self.state, self.result = state, result

    def SHQueryUserNotificationState(self, pointer: Any) -> int:  # noqa: N802 - Windows' own name
        pointer._obj.value = self.state
        return self.result


def test_full_screen_on_windows_is_what_mutes_notices() -> None:
    busy = [s for s in range(1, 8) if full_screen_windows.read(FakeShell32(s)).is_full_screen]
    assert busy == [2, 3, 4]
    assert full_screen_windows.read(FakeShell32(2, result=-1)).problem


def test_full_screen_where_nobody_tells_is_said_and_never_true(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    wayland = {"WAYLAND_DISPLAY": "wayland-0", "DISPLAY": ":0"}
    for env in (wayland, {"XDG_SESSION_TYPE": "wayland", "DISPLAY": ":0"}, {}):
        found = full_screen.read_full_screen(env)
        assert not found.is_full_screen
        assert "not available" in found.problem
    monkeypatch.setattr("sys.platform", "darwin")
    assert "macOS" in full_screen.read_full_screen({}).problem


def test_full_screen_of_a_display_that_is_not_there_is_a_problem_and_no_end() -> None:
    assert full_screen_x11.read(":987").problem
