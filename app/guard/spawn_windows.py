"""Starts workers on Windows: suspended, put into their job, then let run.

Called by the guard's main thread only. Without a job no worker is started, as nothing else would end
it with the guard. Not yet run on Windows.
"""

import contextlib
import subprocess

from app.core.lifecycle import CapKind
from app.guard.cap_windows import make_job
from app.guard.caps import CapTooSmall, Held, NotHeld, kernel_limits
from app.guard.child import Child, ExitStatus, SpawnFailed
from app.guard.environment import worker_environment
from app.guard.options import GuardOptions
from app.guard.protocol import EXIT_ALLOCATION_FAILED, Launch
from app.guard.win32 import Win32, win32

KILLED_CODE = 0x434F4F4C
"""What our own kills leave as exit code, so that they are told from others."""
_NO_MEMORY_CODES = frozenset({0xC0000017, 0xC000012D, 0xC000009A})
_CRASH_SIGNALS = {
    0xC0000005: 11, 0xC00000FD: 11, 0xC0000006: 7, 0xC000001D: 4, 0xC0000094: 8,
    0xC0000409: 6, 0xC0000374: 6, 0x40000015: 6,
}  # fmt: skip
"""Exception codes, by the signal that is the same thing elsewhere."""


def exit_status(code: int, peak_bytes: int = 0) -> ExitStatus:
    """Windows' one number as the two that causes are told by."""
    number = code & 0xFFFFFFFF
    if number == KILLED_CODE:
        return ExitStatus(None, 9, peak_bytes=peak_bytes)
    if number in _NO_MEMORY_CODES:
        return ExitStatus(EXIT_ALLOCATION_FAILED, None, peak_bytes=peak_bytes)
    if number in _CRASH_SIGNALS:
        return ExitStatus(None, _CRASH_SIGNALS[number], peak_bytes=peak_bytes)
    return ExitStatus(number, None, peak_bytes=peak_bytes)


class WindowsSpawner:
    """`child.Spawner` on Job Objects."""

    def __init__(self, options: GuardOptions, api: Win32 | None = None) -> None:
        self._options = options
        self._api = api or win32()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._jobs: dict[str, int] = {}

    def expected_cap(self) -> Held:
        return Held(CapKind.JOB_OBJECT, 0, swap_forbidden=False)

    def spawn(self, launch: Launch, stdio: tuple[int, int, int]) -> Child:
        api = self._api
        try:
            job, held = make_job(api, kernel_limits(launch.caps, self._options.kernel_above_bytes))
        except (CapTooSmall, NotHeld) as reason:
            raise SpawnFailed(str(reason)) from reason
        stdin, stdout, stderr = stdio
        process: subprocess.Popen[bytes] | None = None
        try:
            process = api.start(
                launch.argv,
                env=worker_environment(launch.env),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=launch.cwd or None,
                suspended=True,
            )
            handle = process_handle(process)
            api.assign(job, handle)
            api.resume(handle)
        except OSError as error:
            if process is not None:
                with contextlib.suppress(OSError):
                    process.kill()
            api.close_handle(job)
            raise SpawnFailed(f"The worker could not be started: {error}") from error
        self._processes[launch.worker_id], self._jobs[launch.worker_id] = process, job
        return Child(launch.worker_id, process.pid, 0.0, handle, held=held)

    def poll_report(self, child: Child) -> bool:
        return child.held is not None

    def kill(self, child: Child, *, release: bool = False) -> None:  # noqa: ARG002 - Linux can release
        with contextlib.suppress(OSError):
            self._api.terminate_job(self._jobs[child.worker_id], KILLED_CODE)

    def oom_kills(self, child: Child) -> int:  # noqa: ARG002 - nothing is killed for memory there
        return -1

    def reap(self, child: Child) -> ExitStatus | None:
        code = self._processes[child.worker_id].poll()
        if code is None:
            return None
        job = self._jobs.pop(child.worker_id)
        del self._processes[child.worker_id]
        peak_bytes = 0
        with contextlib.suppress(OSError):
            peak_bytes = int(self._api.job_limits(job).peak_job_memory)
        with contextlib.suppress(OSError):
            self._api.terminate_job(job, KILLED_CODE)
        self._api.close_handle(job)
        child.handle = -1
        return exit_status(code, peak_bytes)

    def handle_to_send(self, child: Child) -> tuple[int, ...]:  # noqa: ARG002 - the app waits for words
        return ()

    def close(self) -> None:
        for job in self._jobs.values():
            self._api.close_handle(job)
        self._jobs.clear()


def process_handle(process: "subprocess.Popen[bytes]") -> int:
    """The handle that Popen keeps; it has no public name."""
    return int(vars(process)["_handle"])
