"""A small real desktop for tests: X server, session bus, window manager, panel with a tray, a mouse."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from app.core.paths import HOME_VARIABLE

PROGRAMS = ("Xvfb", "dbus-daemon", "openbox", "tint2", "xdotool", "xwininfo")
WAIT_S = 30.0
T = TypeVar("T")

_TINT2 = """panel_items = S
panel_size = 100% 30
panel_position = bottom center horizontal
systray_icon_size = 22
"""


def wait_for(what: str, look: Callable[[], T | None]) -> T:
    """Polls `look` until it gives something true."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"not seen within {WAIT_S:g} s: {what}")


class Desktop:
    """Starts everything in `folder`; `close` ends everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("QT_", "WAYLAND_", "XDG_", "DBUS_", "DISPLAY"))
        }
        runtime = folder / "run"
        runtime.mkdir(mode=0o700)
        self.env |= {"HOME": str(folder), "XDG_RUNTIME_DIR": str(runtime)}
        self.env[HOME_VARIABLE] = str(folder / "home")
        self._running: list[subprocess.Popen[bytes]] = []
        (folder / "tint2rc").write_text(_TINT2)
        read, write = os.pipe()
        self._start(
            [
                "Xvfb",
                "-displayfd",
                str(write),
                "-screen",
                "0",
                "1280x800x24",
                "-nolisten",
                "tcp",
                "-noreset",
            ],
            pass_fds=(write,),
        )
        os.close(write)
        with os.fdopen(read) as pipe:
            self.env["DISPLAY"] = ":" + pipe.readline().strip()
        read, write = os.pipe()
        self._start(
            ["dbus-daemon", "--session", "--nofork", f"--print-address={write}"], pass_fds=(write,)
        )
        os.close(write)
        with os.fdopen(read) as pipe:
            self.env["DBUS_SESSION_BUS_ADDRESS"] = pipe.readline().strip()
        self._start(["openbox"])

    def start_panel(self) -> subprocess.Popen[bytes]:
        return self._start(["tint2", "-c", str(self.folder / "tint2rc")])

    def start_notifier_panel(self) -> tuple[subprocess.Popen[bytes], Path]:
        """A panel of the StatusNotifier kind, and the file with the icons that it has got."""
        out = self.folder / f"notifier{len(self._running)}"
        with out.open("wb") as told:
            argv = [sys.executable, "-m", "tests.ui.sni_watcher"]
            return self._start(argv, stdout=told), out

    def start_tray(
        self, *options: str, program: str = "stand_in_program"
    ) -> subprocess.Popen[bytes]:
        log = (self.folder / "log").open("wb")
        argv = [sys.executable, "-m", f"tests.ui.{program}", str(self.folder), *options]
        with log:
            return self._start(argv, stderr=log)

    def end(self, program: subprocess.Popen[bytes]) -> None:
        program.kill()
        program.wait(WAIT_S)

    def close(self) -> None:
        for program in reversed(self._running):
            if program.poll() is None:
                self.end(program)

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def commands(self) -> str:
        path = self.folder / "commands"
        return path.read_text() if path.exists() else ""

    def seen(self) -> dict[str, Any]:
        path = self.folder / "seen.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def icons(self) -> list[tuple[int, int]]:
        """The middles of our docked icons on the screen."""
        tree = self._ask("xwininfo", "-root", "-tree")
        pattern = r'\("coolhead" "coolhead"\)\s+(\d+)x(\d+)\+\S+\s+\+(\d+)\+(\d+)'
        return [
            (int(x) + int(width) // 2, int(y) + int(height) // 2)
            for width, height, x, y in re.findall(pattern, tree)
            if int(width) <= 64 and int(height) <= 64 and int(y) > 700
        ]

    def icon(self) -> tuple[int, int] | None:
        return next(iter(self.icons()), None)

    def wait_for_icon(self) -> tuple[int, int]:
        try:
            return wait_for("the icon in the panel", self.icon)
        except AssertionError as error:
            ended = [program.args for program in self._running if program.poll() is not None]
            tree = self._ask("xwininfo", "-root", "-tree")
            raise AssertionError(f"{error}\nended: {ended}\n{self.log()}\n{tree}") from error

    def click(self, x: int, y: int, button: int = 1) -> None:
        self._ask("xdotool", "mousemove", str(x), str(y), "click", str(button))

    def drag(self, start: list[int], end: list[int]) -> None:
        """Presses the left button, moves in steps as a hand does, and lets go."""
        self._ask("xdotool", "mousemove", *map(str, start), "mousedown", "1")
        for step in range(1, 11):
            x, y = (
                first + (last - first) * step // 10 for first, last in zip(start, end, strict=True)
            )
            self._ask("xdotool", "mousemove", str(x), str(y), "sleep", "0.02")
        self._ask("xdotool", "mouseup", "1")

    def type(self, text: str, *keys: str) -> None:
        self._ask("xdotool", "type", text)
        for key in keys:
            self._ask("xdotool", "key", key)

    def open_menu(self) -> dict[str, Any]:
        def opened() -> dict[str, Any] | None:
            if self.seen().get("menu"):
                return self.seen()
            return None

        wait_for("an earlier menu's end", lambda: self.seen().get("menu") == {})
        self.click(*self.wait_for_icon(), button=3)
        return wait_for("the menu", opened)

    def choose(self, title: str) -> None:
        """Opens the menu with the right button and clicks on the entry."""
        self.click(*self.open_menu()["menu"][title])

    def wait_for_command(self, text: str) -> None:
        wait_for(f"the command {text}", lambda: text in self.commands())

    def _ask(self, *argv: str) -> str:
        return subprocess.run(
            argv, env=self.env, capture_output=True, text=True, timeout=WAIT_S, check=False
        ).stdout

    def _start(
        self,
        argv: list[str],
        pass_fds: tuple[int, ...] = (),
        stdout: Any = subprocess.DEVNULL,
        stderr: Any = subprocess.DEVNULL,
    ) -> subprocess.Popen[bytes]:
        program = subprocess.Popen(
            argv,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
        )
        self._running.append(program)
        return program
