"""Kernel memory caps on Linux, strongest first, each read back before it is believed.

`hold_self` runs in the forked worker before its engine is started: the process places itself, so that
nothing of the engine is ever outside the cap and a slow system bus delays that worker only. The guard
calls `expect` once, `sweep` once, `oom_kills` and `remove_group` at a worker's end.

Swap is forbidden wherever the controller can, as a capped worker would otherwise swap instead of
stopping. memory.high is never set: it throttles for minutes instead of failing.
"""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.core.lifecycle import CapKind
from app.guard.caps import Held, KernelLimits, NotHeld

GROUP_PREFIX = "coolhead-"
BUS_TIMEOUT_S = 3.0
PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """Where the control groups are, and where in them this process is."""

    v2: Path | None = None
    v1_memory: Path | None = None
    own_v2: str = "/"
    own_v1: str = "/"


@dataclass(frozen=True, slots=True)
class CapPlace:
    """Everything `hold_self` needs to know about the machine; tests make their own.

    Attributes:
        group_name: unique to the worker, starts with `guard_prefix` of the guard.
        run_bus: runs a command, returns its exit code and what it wrote.
        own_groups: reads this process's groups afresh.
    """

    tree: CgroupTree
    kinds: tuple[CapKind, ...]
    group_name: str
    has_user_manager: bool
    run_bus: Callable[[Sequence[str]], tuple[int, str]]
    own_groups: Callable[[], CgroupTree]


def find_tree(proc: Path = Path("/proc/self")) -> CgroupTree:
    """Reads the mounts and this process's groups; an unreadable file means no groups."""
    v2 = v1 = None
    own_v2 = own_v1 = "/"
    with contextlib.suppress(OSError):
        for line in (proc / "mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            where, kind = left.split()[4], right.split()
            if kind[0] == "cgroup2" and v2 is None:
                v2 = Path(where)
            elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
                v1 = Path(where)
    with contextlib.suppress(OSError):
        for line in (proc / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" and not controllers:
                own_v2 = path
            elif "memory" in controllers.split(","):
                own_v1 = path
    return CgroupTree(v2, v1, own_v2, own_v1)


def has_user_manager(environ: dict[str, str] | os._Environ[str] = os.environ) -> bool:
    """Whether a systemd user manager can be asked, as far as files tell."""
    folder = environ.get("XDG_RUNTIME_DIR", "")
    return bool(folder) and Path(folder, "bus").exists() and Path(folder, "systemd").exists()


def run_bus(argv: Sequence[str]) -> tuple[int, str]:
    """Runs busctl with a deadline."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=BUS_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stderr or done.stdout).strip()


def guard_prefix(guard_pid: int, start_ticks: float) -> str:
    """Names a guard's groups so that a later guard can tell whether their owner still lives."""
    return f"{GROUP_PREFIX}{guard_pid}-{start_ticks:.0f}-"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as error:
        raise NotHeld(f"cannot read {path.name}: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise NotHeld(f"cannot write {path}: {error.strerror}") from error


def _read_back(path: Path, wanted_bytes: int) -> int:
    text = _read(path)
    if not text.isdigit() or abs(int(text) - wanted_bytes) > PAGE_BYTES:
        raise NotHeld(f"asked {path.name} for {wanted_bytes}, it reads {text}")
    return int(text)


def _controllers(folder: Path, name: str) -> list[str]:
    with contextlib.suppress(OSError):
        return (folder / name).read_text().split()
    return []


def _require_v2(tree: CgroupTree) -> Path:
    if tree.v2 is None:
        raise NotHeld("no cgroup v2 here")
    if "memory" not in _controllers(tree.v2, "cgroup.controllers"):
        raise NotHeld("memory is not a cgroup v2 controller here, limits would be ignored")
    return tree.v2


def _hold_scope(limits: KernelLimits, place: CapPlace) -> Held:
    mount = _require_v2(place.tree)
    if not place.has_user_manager:
        raise NotHeld("no systemd user manager")
    busctl = shutil.which("busctl")
    if busctl is None:
        raise NotHeld("busctl is not installed")
    unit = f"app-{place.group_name}.scope"
    code, said = place.run_bus(
        [
            busctl, "--user", "--timeout=2", "call",
            "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))",
            unit, "fail", "5",
            "Description", "s", "Coolhead worker",
            "PIDs", "au", "1", str(os.getpid()),
            "MemoryMax", "t", str(limits.group_bytes),
            "MemorySwapMax", "t", "0",
            "CollectMode", "s", "inactive-or-failed",
            "0",
        ]
    )  # fmt: skip
    if code != 0:
        raise NotHeld(f"the user manager refused: {said[:200]}")
    # The call returns before the unit is in force.
    deadline = time.monotonic() + BUS_TIMEOUT_S
    while not (own := place.own_groups().own_v2).endswith(unit):
        if time.monotonic() > deadline:
            raise NotHeld("the user manager made no scope in time")
        time.sleep(0.005)
    group = mount / own.lstrip("/")
    limit = _read_back(group / "memory.max", limits.group_bytes)
    # The property that says the same (OOMPolicy) is refused for scopes by managers before 253.
    with contextlib.suppress(NotHeld):
        _write(group / "memory.oom.group", "1")
    return Held(CapKind.SYSTEMD_SCOPE, limit, _swap_forbidden_v2(group), str(group))


def _swap_forbidden_v2(group: Path) -> bool:
    with contextlib.suppress(OSError):
        return (group / "memory.swap.max").read_text().strip() == "0"
    # A kernel without swap accounting has no such file; without swap nothing is to forbid.
    return False


def delegated_parent(tree: CgroupTree) -> Path:
    """The nearest group above us in which we may make a group with a memory limit.

    Raises:
        NotHeld: where there is none.
    """
    mount = _require_v2(tree)
    folder = mount / tree.own_v2.lstrip("/")
    reason = "no group above us is ours"
    while True:
        if os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK):
            if "memory" in _controllers(folder, "cgroup.subtree_control"):
                return folder
            # A group with processes of its own may not hand controllers down.
            if "memory" in _controllers(folder, "cgroup.controllers") and (
                folder == mount or not _controllers(folder, "cgroup.procs")
            ):
                try:
                    (folder / "cgroup.subtree_control").write_text("+memory")
                except OSError as error:
                    reason = f"cannot hand the memory controller down: {error.strerror}"
                else:
                    return folder
            else:
                reason = "our own group holds processes and cannot be split"
        if folder == mount:
            raise NotHeld(reason)
        folder = folder.parent


def _make_group(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise NotHeld(f"cannot make a group in {folder.parent}: {error.strerror}") from error


def _hold_v2(limits: KernelLimits, place: CapPlace) -> Held:
    group = delegated_parent(place.tree) / place.group_name
    _make_group(group)
    try:
        _write(group / "memory.max", str(limits.group_bytes))
        limit = _read_back(group / "memory.max", limits.group_bytes)
        if (group / "memory.swap.max").exists():
            _write(group / "memory.swap.max", "0")
        with contextlib.suppress(NotHeld):
            _write(group / "memory.oom.group", "1")
        _write(group / "cgroup.procs", str(os.getpid()))
    except NotHeld:
        remove_group(str(group))
        raise
    return Held(CapKind.CGROUP_V2, limit, _swap_forbidden_v2(group), str(group))


def v1_parent(tree: CgroupTree) -> Path:
    """The v1 memory group that ours go into.

    Raises:
        NotHeld: where there is none, or it is not writable (v1 knows no delegation to users).
    """
    if tree.v1_memory is None:
        raise NotHeld("no cgroup v1 memory controller here")
    for folder in (tree.v1_memory / tree.own_v1.lstrip("/"), tree.v1_memory):
        if os.access(folder, os.W_OK):
            return folder
    raise NotHeld("the cgroup v1 memory controller is not writable")


def _hold_v1(limits: KernelLimits, place: CapPlace) -> Held:
    group = v1_parent(place.tree) / place.group_name
    _make_group(group)
    swap_forbidden = False
    try:
        _write(group / "memory.limit_in_bytes", str(limits.group_bytes))
        limit = _read_back(group / "memory.limit_in_bytes", limits.group_bytes)
        # Memory plus swap gets the same limit as memory, so that nothing can go to swap.
        if (group / "memory.memsw.limit_in_bytes").exists():
            _write(group / "memory.memsw.limit_in_bytes", str(limits.group_bytes))
            _read_back(group / "memory.memsw.limit_in_bytes", limits.group_bytes)
            swap_forbidden = True
        with contextlib.suppress(NotHeld):
            _write(group / "memory.swappiness", "0")
        _write(group / "cgroup.procs", str(os.getpid()))
    except NotHeld:
        remove_group(str(group))
        raise
    return Held(CapKind.CGROUP_V1, limit, swap_forbidden, str(group))


def _hold_rlimit(limits: KernelLimits) -> Held:
    if limits.on_gpu:
        raise NotHeld("RLIMIT_DATA counts address space, which GPU drivers reserve without using")
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (limits.data_bytes, limits.data_bytes))
    except (OSError, ValueError) as error:
        raise NotHeld(f"RLIMIT_DATA refused: {error}") from error
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != limits.data_bytes:
        raise NotHeld("RLIMIT_DATA does not read back")
    return Held(CapKind.RLIMIT_DATA, limits.data_bytes, swap_forbidden=False)


def hold_self(limits: KernelLimits, place: CapPlace) -> Held:
    """Puts this process under the strongest cap that holds here; never fails.

    Returns:
        What holds, with the reason for each stronger kind that does not.
    """
    tried: list[str] = []
    steps: tuple[tuple[CapKind, Callable[[], Held]], ...] = (
        (CapKind.SYSTEMD_SCOPE, lambda: _hold_scope(limits, place)),
        (CapKind.CGROUP_V2, lambda: _hold_v2(limits, place)),
        (CapKind.CGROUP_V1, lambda: _hold_v1(limits, place)),
        (CapKind.RLIMIT_DATA, lambda: _hold_rlimit(limits)),
    )
    for kind, hold in steps:
        if kind not in place.kinds:
            tried.append(f"{kind}: not allowed by the options")
            continue
        try:
            return replace(hold(), tried=tuple(tried))
        except NotHeld as reason:
            tried.append(f"{kind}: {reason}")
    return Held(CapKind.WATCH_ONLY, 0, swap_forbidden=False, tried=tuple(tried))


def expect(place: CapPlace) -> Held:
    """What `hold_self` will probably find, without making anything; for the report at start-up."""
    tried: list[str] = []

    def scope() -> None:
        _require_v2(place.tree)
        if not place.has_user_manager or shutil.which("busctl") is None:
            raise NotHeld("no systemd user manager")

    steps: tuple[tuple[CapKind, Callable[[], object]], ...] = (
        (CapKind.SYSTEMD_SCOPE, scope),
        (CapKind.CGROUP_V2, lambda: delegated_parent(place.tree)),
        (CapKind.CGROUP_V1, lambda: v1_parent(place.tree)),
        (CapKind.RLIMIT_DATA, lambda: None),
    )
    for kind, check in steps:
        if kind not in place.kinds:
            tried.append(f"{kind}: not allowed by the options")
            continue
        try:
            check()
        except NotHeld as reason:
            tried.append(f"{kind}: {reason}")
        else:
            return Held(kind, 0, kind is not CapKind.RLIMIT_DATA, tried=tuple(tried))
    return Held(CapKind.WATCH_ONLY, 0, swap_forbidden=False, tried=tuple(tried))


def group_pids(group: str) -> list[int]:
    """Processes in a group; empty when it is gone."""
    with contextlib.suppress(OSError, ValueError):
        return [int(pid) for pid in Path(group, "cgroup.procs").read_text().split()]
    return []


def kill_group(group: str) -> None:
    """Ends everything in a group."""
    try:
        # Never made where it is missing: v1 and old kernels have no such file.
        fd = os.open(f"{group}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        for pid in group_pids(group):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return
    with contextlib.suppress(OSError):
        os.write(fd, b"1")
    os.close(fd)


def remove_group(group: str) -> bool:
    """Whether the folder is gone; a group with processes stays, ask again later."""
    try:
        Path(group).rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def sweep(tree: CgroupTree) -> int:
    """Ends and removes what guards that are dead have left; returns how many groups went."""
    swept = 0
    parents: list[Path] = []
    for find in (delegated_parent, v1_parent):
        with contextlib.suppress(NotHeld):
            parents.append(find(tree))
    for parent in parents:
        for folder in parent.glob(f"{GROUP_PREFIX}*-*-*"):
            pid, ticks = folder.name.removeprefix(GROUP_PREFIX).split("-")[:2]
            if pid.isdigit() and ticks.isdigit() and start_ticks(int(pid)) != float(ticks):
                kill_group(str(folder))
                swept += remove_group(str(folder))
    return swept


def start_ticks(pid: int) -> float:
    """The kernel's start time of a process in clock ticks; 0 when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    return float(text.rpartition(")")[2].split()[19])
