"""Start at login: written only when asked, removed when switched off, nobody else's entry touched."""

import plistlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.core.autostart import StartCommand, apply, start_command
from app.core.autostart_linux import DesktopEntry
from app.core.autostart_macos import LaunchAgent
from app.core.autostart_windows import APPROVED, RUN, RunKey
from app.core.errors import FolderUnusable

START = StartCommand(("/opt/my apps/coolhead", "50%", "a\\b", 'say "$HOME"'))


def entry(tmp_path: Path, start: StartCommand = START) -> DesktopEntry:
    return DesktopEntry(start, {"XDG_CONFIG_HOME": str(tmp_path)})


def exec_words(text: str) -> list[str]:
    """The Exec line undone by the rules of desktop entries, as a session would."""
    line = next(line for line in text.splitlines() if line.startswith("Exec="))
    line = line.removeprefix("Exec=").replace("\\\\", "\\")
    words = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line)
    return [re.sub(r"\\(.)", r"\1", quoted or plain).replace("%%", "%") for quoted, plain in words]


def test_desktop_entry_says_what_is_started_whatever_is_in_its_words(tmp_path: Path) -> None:
    found = entry(tmp_path)
    found.switch_on()
    assert found.place == str(tmp_path / "autostart" / "coolhead.desktop")
    assert exec_words(Path(found.place).read_text()) == list(START.argv)
    assert found.is_on()
    assert [path.name for path in (tmp_path / "autostart").iterdir()] == ["coolhead.desktop"]


def test_apply_writes_only_when_asked_and_removes_when_switched_off(tmp_path: Path) -> None:
    found = entry(tmp_path)
    apply(found, is_wanted=False, is_change=False)
    assert not (tmp_path / "autostart").exists()
    apply(found, is_wanted=True, is_change=True)
    assert found.is_on()
    apply(found, is_wanted=False, is_change=True)
    assert not Path(found.place).exists()


def test_apply_at_start_leaves_an_entry_off_that_the_desktop_has_switched_off(
    tmp_path: Path,
) -> None:
    found = entry(tmp_path)
    found.switch_on()
    file = Path(found.place)
    file.write_text(file.read_text() + "Hidden=true\n")
    apply(found, is_wanted=True, is_change=False)
    assert not found.is_on()
    apply(found, is_wanted=True, is_change=True)
    assert found.is_on()


def test_apply_at_start_mends_an_entry_of_a_moved_program(tmp_path: Path) -> None:
    entry(tmp_path, StartCommand(("/old/coolhead",))).switch_on()
    apply(entry(tmp_path), is_wanted=True, is_change=False)
    assert "/old/coolhead" not in Path(entry(tmp_path).place).read_text()


def test_desktop_entry_of_somebody_else_is_neither_written_nor_removed(tmp_path: Path) -> None:
    found = entry(tmp_path)
    Path(found.place).parent.mkdir()
    Path(found.place).write_text("[Desktop Entry]\nExec=other\n")
    with pytest.raises(FolderUnusable, match="left alone"):
        found.switch_on()
    found.switch_off()
    assert "other" in Path(found.place).read_text()


def test_desktop_entry_in_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "autostart").write_text("a file")
    with pytest.raises(FolderUnusable, match="cannot be written"):
        entry(tmp_path).switch_on()


def test_start_command_of_another_home_has_an_entry_and_environment_of_its_own(
    tmp_path: Path,
) -> None:
    plain = start_command({})
    other = start_command({"COOLHEAD_HOME": str(tmp_path)})
    assert plain.name == "coolhead"
    assert other.name.startswith("coolhead-")
    assert other.env == {"COOLHEAD_HOME": str(tmp_path)}
    found = entry(tmp_path, other)
    found.switch_on()
    words = exec_words(Path(found.place).read_text())
    assert words[:2] == ["env", f"COOLHEAD_HOME={tmp_path}"]


def test_start_command_runs_from_anywhere(tmp_path: Path) -> None:
    argv = [*start_command({}).argv, "--version"]
    told = subprocess.run(
        argv,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith("coolhead ")


def test_launch_agent_is_written_and_removed(tmp_path: Path) -> None:
    agent = LaunchAgent(StartCommand(("/x/coolhead",), {"COOLHEAD_HOME": "/h"}), tmp_path / "LA")
    apply(agent, is_wanted=False, is_change=False)
    assert not agent.is_on()
    apply(agent, is_wanted=True, is_change=True)
    told = plistlib.loads(Path(agent.place).read_bytes())
    assert told["ProgramArguments"] == ["/x/coolhead"]
    assert told["EnvironmentVariables"] == {"COOLHEAD_HOME": "/h"}
    assert (told["RunAtLoad"], told["KeepAlive"]) == (True, False)
    assert agent.is_on()
    told["Disabled"] = True
    Path(agent.place).write_bytes(plistlib.dumps(told))
    apply(agent, is_wanted=True, is_change=False)
    assert agent.is_declined()
    apply(agent, is_wanted=False, is_change=True)
    assert not Path(agent.place).exists()


class FakeRegistry:
    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str | bytes] = {}

    def read(self, key: str, name: str) -> str | bytes | None:
        if (key, name) not in self.values:
            raise FileNotFoundError
        return self.values[key, name]

    def write(self, key: str, name: str, value: str) -> None:
        self.values[key, name] = value

    def delete(self, key: str, name: str) -> None:
        if (key, name) not in self.values:
            raise FileNotFoundError
        del self.values[key, name]


def test_run_key_is_written_quoted_and_removed() -> None:
    registry = FakeRegistry()
    key = RunKey(StartCommand((r"C:\My Apps\coolhead.exe",)), registry)
    apply(key, is_wanted=False, is_change=False)
    apply(key, is_wanted=True, is_change=True)
    assert registry.values == {(RUN, "coolhead"): r'"C:\My Apps\coolhead.exe"'}
    assert key.is_on()
    apply(key, is_wanted=False, is_change=True)
    assert registry.values == {}


def test_run_key_that_the_task_manager_has_switched_off_stays_off_until_asked_again() -> None:
    registry = FakeRegistry()
    key = RunKey(StartCommand(("coolhead.exe",)), registry)
    registry.values[APPROVED, "coolhead"] = b"\x03\0\0\0"
    apply(key, is_wanted=True, is_change=False)
    assert (RUN, "coolhead") not in registry.values
    apply(key, is_wanted=True, is_change=True)
    assert key.is_on()


def test_run_key_of_another_home_is_refused() -> None:
    key = RunKey(start_command({"COOLHEAD_HOME": "/h"}), FakeRegistry())
    with pytest.raises(FolderUnusable, match="COOLHEAD_HOME"):
        key.switch_on()


def test_autostart_of_this_system_is_its_own_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.core import autostart

    expected = {"linux": "DesktopEntry", "darwin": "LaunchAgent"}
    for system, kind in expected.items():
        monkeypatch.setattr(sys, "platform", system)
        assert type(autostart.autostart(START)).__name__ == kind
