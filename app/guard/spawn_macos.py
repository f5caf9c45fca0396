"""Starts workers on macOS: lowered by taskpolicy, watched by kqueue, ended with us by the keeper.

Called by the guard's main thread only. Not yet run on a Mac.
"""

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from app.guard import cap_macos
from app.guard.caps import CapTooSmall, Held, kernel_limits
from app.guard.child import Child, ExitStatus, SpawnFailed
from app.guard.command import guard_command
from app.guard.environment import worker_environment
from app.guard.options import GuardOptions
from app.guard.protocol import Launch

TASKPOLICY = "/usr/sbin/taskpolicy"
_events: Any = select
"""kqueue is not in the type stubs of other systems."""


class MacosSpawner:
    """`child.Spawner` on Popen and kqueue."""

    def __init__(self, options: GuardOptions) -> None:
        self._options = options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._queues: dict[str, Any] = {}
        read_end, self._keeper_pipe = os.pipe()
        self._keeper = subprocess.Popen(
            [*guard_command(), "--keeper", "--fd", str(read_end)],
            stdin=subprocess.DEVNULL,
            pass_fds=(read_end,),
            start_new_session=True,
        )
        os.close(read_end)

    def expected_cap(self) -> Held:
        return cap_macos.hold()

    def _tell_keeper(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._keeper_pipe, text.encode())

    def spawn(self, launch: Launch, stdio: tuple[int, int, int]) -> Child:
        try:
            kernel_limits(launch.caps, self._options.kernel_above_bytes)
        except CapTooSmall as reason:
            raise SpawnFailed(str(reason)) from reason
        argv = list(launch.argv)
        if Path(TASKPOLICY).exists():
            # It sets the quality of service and becomes the program, under the same pid.
            argv = [TASKPOLICY, "-c", "utility", *argv]
        stdin, stdout, stderr = stdio
        try:
            process = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=launch.cwd or "/",
                env=worker_environment(launch.env),
                start_new_session=True,
            )
        except OSError as error:
            raise SpawnFailed(f"The worker could not be started: {error}") from error
        self._tell_keeper(f"+{process.pid}\n")
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, self._options.nice)
        self._processes[launch.worker_id] = process
        return Child(
            worker_id=launch.worker_id,
            pid=process.pid,
            start_time=0.0,
            handle=self._exit_queue(launch.worker_id, process.pid),
            held=cap_macos.hold(),
        )

    def _exit_queue(self, worker_id: str, pid: int) -> int:
        """A kqueue that is ready once the process ends; its descriptor can be polled."""
        queue = _events.kqueue()
        event = _events.kevent(
            pid,
            filter=_events.KQ_FILTER_PROC,
            flags=_events.KQ_EV_ADD,
            fflags=_events.KQ_NOTE_EXIT,
        )
        with contextlib.suppress(OSError):  # it has ended already: reaped with the next turn
            queue.control([event], 0)
        self._queues[worker_id] = queue
        return int(queue.fileno())

    def poll_report(self, child: Child) -> bool:
        return child.held is not None

    def kill(self, child: Child, *, release: bool = False) -> None:  # noqa: ARG002 - Linux can release
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)

    def oom_kills(self, child: Child) -> int:  # noqa: ARG002 - not counted there
        return -1

    def reap(self, child: Child) -> ExitStatus | None:
        process = self._processes[child.worker_id]
        code = process.poll()
        if code is None:
            return None
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        self._tell_keeper(f"-{child.pid}\n")
        del self._processes[child.worker_id]
        self._queues.pop(child.worker_id).close()
        child.handle = -1
        return ExitStatus(code if code >= 0 else None, -code if code < 0 else None)

    def handle_to_send(self, child: Child) -> tuple[int, ...]:  # noqa: ARG002 - no pidfd there
        return ()

    def close(self) -> None:
        os.close(self._keeper_pipe)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(2.0)
