"""The Windows calls that the guard needs, typed, in one place; the seam that tests fake.

Every call goes through the libraries that the constructor is given. Not yet run on Windows.
"""

import ctypes
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

CREATE_SUSPENDED = 0x4
CREATE_NO_WINDOW = 0x08000000
BELOW_NORMAL_PRIORITY_CLASS = 0x4000
PROCESS_DUP_HANDLE = 0x40
DUPLICATE_SAME_ACCESS = 2
JOB_EXTENDED_LIMITS = 9
LIMIT_PRIORITY_CLASS = 0x20
LIMIT_JOB_MEMORY = 0x200
LIMIT_DIE_ON_EXCEPTION = 0x400
LIMIT_KILL_ON_CLOSE = 0x2000
LOW_MEMORY_NOTIFICATION = 0

_SIZE, _DWORD, _QWORD = ctypes.c_size_t, ctypes.c_uint32, ctypes.c_uint64


class JobLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", _DWORD),
        ("least_working_set", _SIZE),
        ("most_working_set", _SIZE),
        ("most_processes", _DWORD),
        ("affinity", _SIZE),
        ("priority_class", _DWORD),
        ("scheduling_class", _DWORD),
        ("io_counters", _QWORD * 6),
        ("process_memory", _SIZE),
        ("job_memory", _SIZE),
        ("peak_process_memory", _SIZE),
        ("peak_job_memory", _SIZE),
    )


class MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("length", _DWORD),
        ("load_percent", _DWORD),
        ("total_physical", _QWORD),
        ("available_physical", _QWORD),
        ("commit_limit", _QWORD),
        ("commit_available", _QWORD),
        ("total_virtual", _QWORD),
        ("available_virtual", _QWORD),
        ("available_extended", _QWORD),
    )


class ProcessMemory(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS_EX."""

    _fields_ = (
        ("length", _DWORD),
        ("page_faults", _DWORD),
        ("peak_working_set", _SIZE),
        ("working_set", _SIZE),
        ("peak_paged_pool", _SIZE),
        ("paged_pool", _SIZE),
        ("peak_nonpaged_pool", _SIZE),
        ("nonpaged_pool", _SIZE),
        ("pagefile", _SIZE),
        ("peak_pagefile", _SIZE),
        ("private", _SIZE),
    )


class IoCounters(ctypes.Structure):
    """IO_COUNTERS."""

    _fields_ = (
        ("reads", _QWORD),
        ("writes", _QWORD),
        ("others", _QWORD),
        ("read_bytes", _QWORD),
        ("written_bytes", _QWORD),
        ("other_bytes", _QWORD),
    )


class Win32:
    """Calls that raise OSError where the system says no.

    Args:
        kernel: kernel32.
        ntdll: for resuming a process as a whole.
        runtime: the msvcrt module, for descriptors and handles.
    """

    def __init__(self, kernel: Any, ntdll: Any, runtime: Any) -> None:
        self.kernel = kernel
        self._ntdll = ntdll
        self._runtime = runtime

    def _check(self, done: Any, what: str) -> None:
        if not done:
            last_error: Any = getattr(ctypes, "get_last_error", int)
            raise OSError(last_error(), f"{what} failed")

    # -- jobs -------------------------------------------------------------------------------------

    def create_job(self, commit_bytes: int) -> tuple[int, int]:
        """A job with a memory limit whose processes end with its last handle; handle and limit read back."""
        job = self.kernel.CreateJobObjectW(None, None)
        self._check(job, "CreateJobObject")
        limits = JobLimits()
        limits.flags = (
            LIMIT_JOB_MEMORY | LIMIT_KILL_ON_CLOSE | LIMIT_PRIORITY_CLASS | LIMIT_DIE_ON_EXCEPTION
        )
        limits.priority_class = BELOW_NORMAL_PRIORITY_CLASS
        limits.job_memory = commit_bytes
        size = ctypes.sizeof(limits)
        try:
            self._check(
                self.kernel.SetInformationJobObject(
                    job, JOB_EXTENDED_LIMITS, ctypes.byref(limits), size
                ),
                "SetInformationJobObject",
            )
            found = self.job_limits(job)
        except OSError:
            self.close_handle(job)
            raise
        return int(job), int(found.job_memory)

    def job_limits(self, job: int) -> JobLimits:
        found = JobLimits()
        self._check(
            self.kernel.QueryInformationJobObject(
                job, JOB_EXTENDED_LIMITS, ctypes.byref(found), ctypes.sizeof(found), None
            ),
            "QueryInformationJobObject",
        )
        return found

    def assign(self, job: int, process: int) -> None:
        self._check(self.kernel.AssignProcessToJobObject(job, process), "AssignProcessToJobObject")

    def terminate_job(self, job: int, code: int) -> None:
        self._check(self.kernel.TerminateJobObject(job, code), "TerminateJobObject")

    # -- processes and handles --------------------------------------------------------------------

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        cwd: str | None = None,
        inherited: Sequence[int] = (),
        suspended: bool = False,
    ) -> "subprocess.Popen[bytes]":
        """Starts a program without a window, with just these handles."""
        startup: Any = vars(subprocess)["STARTUPINFO"]()
        startup.lpAttributeList = {"handle_list": list(inherited)}
        set_inheritable: Any = vars(os)["set_handle_inheritable"]
        for handle in inherited:
            set_inheritable(handle, True)
        options: dict[str, Any] = {
            "startupinfo": startup,
            "creationflags": CREATE_NO_WINDOW | (CREATE_SUSPENDED if suspended else 0),
        }
        return subprocess.Popen(
            list(argv), stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=dict(env), **options
        )

    def resume(self, process: int) -> None:
        """Lets a suspended process run; Popen has closed its thread's handle, so as a whole."""
        if self._ntdll.NtResumeProcess(process) != 0:
            raise OSError("NtResumeProcess failed")

    def handle_of(self, descriptor: int) -> int:
        return int(self._runtime.get_osfhandle(descriptor))

    def take_descriptors(self, pid: int, handles: Sequence[int]) -> tuple[int, ...]:
        """Duplicates another process's handles into descriptors of ours."""
        source = self.kernel.OpenProcess(PROCESS_DUP_HANDLE, 0, pid)
        self._check(source, "OpenProcess")
        taken: list[int] = []
        try:
            for handle in handles:
                ours = ctypes.c_void_p()
                self._check(
                    self.kernel.DuplicateHandle(
                        source, handle, self.kernel.GetCurrentProcess(), ctypes.byref(ours),
                        0, 0, DUPLICATE_SAME_ACCESS,
                    ),
                    "DuplicateHandle",
                )  # fmt: skip
                taken.append(int(self._runtime.open_osfhandle(ours.value or 0, 0)))
        finally:
            self.close_handle(source)
        return tuple(taken)

    def close_handle(self, handle: int) -> None:
        self.kernel.CloseHandle(handle)

    # -- memory -----------------------------------------------------------------------------------

    def memory_status(self) -> MemoryStatus:
        status = MemoryStatus()
        status.length = ctypes.sizeof(status)
        self._check(self.kernel.GlobalMemoryStatusEx(ctypes.byref(status)), "GlobalMemoryStatusEx")
        return status

    def process_memory(self, process: int) -> ProcessMemory:
        memory = ProcessMemory()
        memory.length = ctypes.sizeof(memory)
        self._check(
            self.kernel.K32GetProcessMemoryInfo(process, ctypes.byref(memory), memory.length),
            "GetProcessMemoryInfo",
        )
        return memory

    def read_bytes(self, process: int) -> int:
        counters = IoCounters()
        if not self.kernel.GetProcessIoCounters(process, ctypes.byref(counters)):
            return -1
        return int(counters.read_bytes)

    def is_memory_low(self, notification: int) -> bool:
        state = ctypes.c_int()
        done = self.kernel.QueryMemoryResourceNotification(notification, ctypes.byref(state))
        return bool(done and state.value)


def win32() -> Win32:
    """The real calls."""
    loader: Any = ctypes
    kernel = loader.WinDLL("kernel32", use_last_error=True)
    # Handles are pointers; without this they would be cut to 32 bits.
    for name in ("CreateJobObjectW", "OpenProcess", "GetCurrentProcess"):
        getattr(kernel, name).restype = ctypes.c_void_p
    kernel.CreateMemoryResourceNotification.restype = ctypes.c_void_p
    for name, count in {
        "AssignProcessToJobObject": 2,
        "CloseHandle": 1,
        "QueryMemoryResourceNotification": 2,
        "K32GetProcessMemoryInfo": 2,
        "GetProcessIoCounters": 2,
    }.items():
        getattr(kernel, name).argtypes = [ctypes.c_void_p] * count + (
            [_DWORD] if name == "K32GetProcessMemoryInfo" else []
        )
    kernel.TerminateJobObject.argtypes = [ctypes.c_void_p, ctypes.c_uint]
    kernel.SetInformationJobObject.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, _DWORD,
    ]  # fmt: skip
    kernel.QueryInformationJobObject.argtypes = [
        ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, _DWORD, ctypes.c_void_p,
    ]  # fmt: skip
    kernel.DuplicateHandle.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _DWORD, ctypes.c_int, _DWORD,
    ]  # fmt: skip
    ntdll = loader.WinDLL("ntdll")
    ntdll.NtResumeProcess.argtypes = [ctypes.c_void_p]
    import msvcrt

    return Win32(kernel, ntdll, msvcrt)
