"""The memory cap on Windows: a Job Object, which limits committed memory and leaves weights out.

A commit that would pass the limit fails, it does not kill; mapped weights are free. Closing the job's
last handle, which only the guard holds, ends every process in it. Not yet run on Windows.
"""

from app.core.lifecycle import CapKind
from app.guard.caps import Held, KernelLimits, NotHeld
from app.guard.win32 import Win32

PAGE_BYTES = 4096


def make_job(api: Win32, limits: KernelLimits) -> tuple[int, Held]:
    """A job for one worker, its limit read back.

    Raises:
        NotHeld: where the system refuses or the limit does not read back; no job is left then.
    """
    if limits.commit_bytes >= 1 << 62:
        raise NotHeld("the limit overflows")
    try:
        job, limit_bytes = api.create_job(limits.commit_bytes)
    except OSError as error:
        raise NotHeld(f"no Job Object: {error}") from error
    if abs(limit_bytes - limits.commit_bytes) > PAGE_BYTES:
        api.close_handle(job)
        raise NotHeld(f"asked the job for {limits.commit_bytes}, it reads {limit_bytes}")
    return job, Held(CapKind.JOB_OBJECT, limit_bytes, swap_forbidden=False, group=str(job))
