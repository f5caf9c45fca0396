"""Starts workers on Linux by fork: the child caps itself, lowers itself, then becomes the engine.

Called by the guard's main thread only, which is its only thread: the parent-death signal is sent when
the *thread* that forked ends, and a fork of a threaded process could inherit a held lock.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

from app.core.lifecycle import CapKind
from app.guard import cap_linux
from app.guard.cap_linux import CapPlace
from app.guard.caps import CapTooSmall, Held, KernelLimits, kernel_limits
from app.guard.child import Child, ExitStatus, SpawnFailed
from app.guard.environment import worker_environment
from app.guard.options import GuardOptions
from app.guard.protocol import Launch

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SYS_PROCESS_MRELEASE = 448
"""The same number on every architecture that has it (kernel 5.15 and later)."""
SYS_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
IOPRIO_LOWEST = (2 << 13) | 7
"""Best effort, lowest of its eight levels: the idle class would let a busy disk starve a load."""
MOST_DESCRIPTORS = 1 << 20
OOM_SCORE_ADJ = "900"
"""Should the kernel have to choose, it takes a worker: its loss costs an answer, no data."""


class LinuxSpawner:
    """`child.Spawner` on fork, pidfd and control groups."""

    def __init__(self, options: GuardOptions) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._options = options
        self._tree = cap_linux.find_tree()
        me = os.getpid()
        self._prefix = cap_linux.guard_prefix(me, cap_linux.start_ticks(me))
        self._count = 0
        self._oom_files: dict[str, int] = {}
        self._empty_groups: list[str] = []
        self._alive: set[int] = set()
        self._helpers = frozenset(self._children())
        # A worker's own children come to us if it dies before them, and are ended.
        self._libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        cap_linux.sweep(self._tree)

    def _place(self, name: str) -> CapPlace:
        return CapPlace(
            tree=self._tree,
            kinds=tuple(self._options.cap_kinds),
            group_name=name,
            has_user_manager=cap_linux.has_user_manager(),
            run_bus=cap_linux.run_bus,
            own_groups=cap_linux.find_tree,
        )

    def expected_cap(self) -> Held:
        return cap_linux.expect(self._place(self._prefix + "0"))

    def spawn(self, launch: Launch, stdio: tuple[int, int, int]) -> Child:
        try:
            limits = kernel_limits(launch.caps, self._options.kernel_above_bytes)
        except CapTooSmall as reason:
            raise SpawnFailed(str(reason)) from reason
        self._count += 1
        place = self._place(f"{self._prefix}{self._count}")
        read_end, write_end = os.pipe()
        guard_pid = os.getpid()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(read_end)
            os.close(write_end)
            raise SpawnFailed(f"No process could be started: {error.strerror}.") from error
        if pid == 0:
            self._become_worker(guard_pid, launch, stdio, limits, place, write_end)
        os.close(write_end)
        os.set_blocking(read_end, False)
        self._alive.add(pid)
        return Child(
            worker_id=launch.worker_id,
            pid=pid,
            start_time=cap_linux.start_ticks(pid),
            handle=os.pidfd_open(pid),
            report=read_end,
        )

    def _become_worker(
        self,
        guard_pid: int,
        launch: Launch,
        stdio: tuple[int, int, int],
        limits: KernelLimits,
        place: CapPlace,
        write_end: int,
    ) -> NoReturn:
        """In the child: never returns, and whatever goes wrong goes to the guard as text."""
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            os.setsid()
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != guard_pid:
                os._exit(1)
            self._lower()
            held = cap_linux.hold_self(limits, place)
            os.write(write_end, json.dumps(asdict(held)).encode() + b"\n")
            for target, source in enumerate(stdio):
                os.dup2(source, target)
            os.chdir(launch.cwd or "/")
            os.set_inheritable(write_end, False)
            os.closerange(3, write_end)
            os.closerange(write_end + 1, MOST_DESCRIPTORS)
            os.execvpe(  # noqa: S606 - the point of this function
                launch.argv[0], launch.argv, worker_environment(launch.env)
            )
        except BaseException as error:  # noqa: BLE001 - the forked child must not live on as a guard
            with contextlib.suppress(OSError):
                os.write(write_end, f"error: {error}\n".encode())
        os._exit(127)

    def _lower(self) -> None:
        """Lower priorities, and no core dump of gigabytes; none of it is worth failing for."""
        steps: tuple[Callable[[], object], ...] = (
            lambda: os.setpriority(os.PRIO_PROCESS, 0, self._options.nice),
            lambda: Path("/proc/self/oom_score_adj").write_text(OOM_SCORE_ADJ),
            lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        )
        for step in steps:
            with contextlib.suppress(OSError, ValueError):
                step()
        number = SYS_IOPRIO_SET.get(os.uname().machine)
        if number is not None:
            self._libc.syscall(number, 1, 0, IOPRIO_LOWEST)

    def poll_report(self, child: Child) -> bool:
        while True:
            try:
                piece = os.read(child.report, 65536)
            except BlockingIOError:
                self._note_held(child)
                return False
            if not piece:
                break
            child.report_text += piece
        os.close(child.report)
        child.report = -1
        self._note_held(child)
        for line in child.report_text.decode(errors="replace").splitlines():
            if line.startswith("error: "):
                child.failure = line.removeprefix("error: ")
        if child.held is None and not child.failure:
            child.failure = "it ended before it was placed under its cap"
        return True

    def _note_held(self, child: Child) -> None:
        if child.held is not None or b"\n" not in child.report_text:
            return
        line = child.report_text.split(b"\n", 1)[0]
        if line.startswith(b"{"):
            found = json.loads(line)
            child.held = Held(
                kind=CapKind(found["kind"]),
                limit_bytes=found["limit_bytes"],
                swap_forbidden=found["swap_forbidden"],
                group=found["group"],
                tried=tuple(found["tried"]),
            )
            if child.group:
                v1 = child.held.kind is CapKind.CGROUP_V1
                name = "memory.oom_control" if v1 else "memory.events"
                with contextlib.suppress(OSError):
                    self._oom_files[child.worker_id] = os.open(
                        f"{child.group}/{name}", os.O_RDONLY | os.O_CLOEXEC
                    )

    def oom_kills(self, child: Child) -> int:
        fd = self._oom_files.get(child.worker_id)
        if fd is None:
            return -1
        try:
            text = os.pread(fd, 4096, 0)
        except OSError:
            return -1
        for line in text.splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
        return -1

    def kill(self, child: Child, *, release: bool = False) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child.handle, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        if child.group:
            cap_linux.kill_group(child.group)
        if release:
            self._libc.syscall(SYS_PROCESS_MRELEASE, child.handle, 0)

    def reap(self, child: Child) -> ExitStatus | None:
        seen = os.waitid(os.P_PIDFD, child.handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if seen is None:
            return None
        oom_kills = self.oom_kills(child)
        # Before the reaping, so that neither the group's number nor the pid can be someone else's.
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        if child.group:
            cap_linux.kill_group(child.group)
            self._empty_groups.append(child.group)
        fd = self._oom_files.pop(child.worker_id, None)
        for open_fd in (fd, child.report, child.handle):
            if open_fd is not None and open_fd >= 0:
                os.close(open_fd)
        child.report = child.handle = -1
        self._alive.discard(child.pid)
        self._end_strays()
        self._tidy()
        code = os.waitstatus_to_exitcode(status)
        return ExitStatus(
            exit_code=code if code >= 0 else None,
            exit_signal=-code if code < 0 else None,
            group_oom_kills=oom_kills,
            peak_bytes=usage.ru_maxrss * 1024,
        )

    def _tidy(self) -> None:
        self._empty_groups = [
            group for group in self._empty_groups if not cap_linux.remove_group(group)
        ]

    def _children(self) -> list[int]:
        with contextlib.suppress(OSError, ValueError):
            text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
            return [int(pid) for pid in text.split()]
        return []

    def _end_strays(self) -> None:
        """Ends what workers have left to us; the zombies go with the next worker's end."""
        for pid in self._children():
            if pid not in self._alive and pid not in self._helpers:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)

    def handle_to_send(self, child: Child) -> tuple[int, ...]:
        return (child.handle,)

    def close(self) -> None:
        self._tidy()
