"""What both parts share: checks that print what they saw, and the kernel's own files."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
failures: list[str] = []


def check(what: str, *, holds: bool, seen: object = "") -> None:
    """Prints one line a check; the end of the part counts the failed ones."""
    print(f"{'ok    ' if holds else 'FAILED'} {what}: {seen}", flush=True)
    if not holds:
        failures.append(what)


def say(what: object) -> None:
    print(f"       {what}", flush=True)


def finish() -> None:
    """Ends the part with the number of failed checks."""
    sys.exit(len(failures))


def vmstat(name: str) -> int:
    for line in Path("/proc/vmstat").read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def group_of(pid: int) -> Path:
    """The control group that a process is in."""
    return GROUPS / Path(f"/proc/{pid}/cgroup").read_text().strip().partition("::")[2].lstrip("/")


def read(group: Path, name: str) -> str:
    """One file of a group; empty where it is not there."""
    try:
        return (group / name).read_text().strip()
    except OSError:
        return ""


def wait_for(fact: Callable[[], object], bound_s: float) -> bool:
    """Whether a fact came true in time; emulated cores need long bounds."""
    end_s = time.monotonic() + bound_s
    while not fact():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.1)
    return True


def ask(*argv: str) -> str:
    """What a command says, with its complaints."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()
