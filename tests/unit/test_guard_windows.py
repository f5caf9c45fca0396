"""The guard's Windows half with the system's calls faked at their edge."""

# ruff: noqa: N802 - the fakes carry the names of the calls they stand for

import ctypes
import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import pytest

from app.core.lifecycle import CapKind
from app.guard.cap_windows import make_job
from app.guard.caps import KernelLimits, NotHeld
from app.guard.child import Child, SpawnFailed
from app.guard.gpu_reader import NvmlGpus
from app.guard.gpu_windows import DEDICATED, PDH_MORE_DATA, SHARED, CounterItem, PdhGpus
from app.guard.lines import GIB, MIB
from app.guard.link import LinkClosed, Packet
from app.guard.link_windows import WindowsLink, pack, unpack
from app.guard.options import GuardOptions
from app.guard.protocol import EXIT_ALLOCATION_FAILED, Caps, Launch
from app.guard.sampler_windows import WindowsSampler
from app.guard.spawn_windows import KILLED_CODE, WindowsSpawner, exit_status
from app.guard.win32 import (
    BELOW_NORMAL_PRIORITY_CLASS,
    LIMIT_JOB_MEMORY,
    LIMIT_KILL_ON_CLOSE,
    JobLimits,
    Win32,
)

LIMITS = KernelLimits(3 * GIB, 2 * GIB, 1 * GIB, on_gpu=False)


class FakeKernel:
    """kernel32 with one job and one process."""

    def __init__(self) -> None:
        self.limits = JobLimits()
        self.refuses: set[str] = set()
        self.cut = 0
        self.closed: list[int] = []
        self.assigned: list[tuple[int, int]] = []
        self.ended: list[tuple[int, int]] = []
        self.commit_free = 8 * GIB
        self.is_low = False
        self.private = 700 * MIB

    def CreateJobObjectW(self, *_: Any) -> int:
        return 0 if "create" in self.refuses else 77

    def SetInformationJobObject(self, _job: int, _kind: int, limits: Any, _size: int) -> int:
        ctypes.memmove(ctypes.byref(self.limits), limits, ctypes.sizeof(JobLimits))
        return 0 if "set" in self.refuses else 1

    def QueryInformationJobObject(self, _job: int, _kind: int, found: Any, *_: Any) -> int:
        ctypes.memmove(found, ctypes.byref(self.limits), ctypes.sizeof(JobLimits))
        found._obj.job_memory -= self.cut
        found._obj.peak_job_memory = 123 * MIB
        return 1

    def AssignProcessToJobObject(self, job: int, process: int) -> int:
        self.assigned.append((job, process))
        return 0 if "assign" in self.refuses else 1

    def TerminateJobObject(self, job: int, code: int) -> int:
        self.ended.append((job, code))
        return 1

    def CloseHandle(self, handle: int) -> int:
        self.closed.append(handle)
        return 1

    def OpenProcess(self, *_: Any) -> int:
        return 0 if "open" in self.refuses else 5

    def GetCurrentProcess(self) -> int:
        return -1

    def DuplicateHandle(self, _source: int, handle: int, _target: int, ours: Any, *_: Any) -> int:
        ours._obj.value = handle + 1000
        return 1

    def GlobalMemoryStatusEx(self, status: Any) -> int:
        status._obj.total_physical = 16 * GIB
        status._obj.available_physical = 9 * GIB
        status._obj.commit_limit = 20 * GIB
        status._obj.commit_available = self.commit_free
        return 1

    def CreateMemoryResourceNotification(self, _kind: int) -> int:
        return 3

    def QueryMemoryResourceNotification(self, _handle: int, state: Any) -> int:
        state._obj.value = int(self.is_low)
        return 1

    def K32GetProcessMemoryInfo(self, _process: int, memory: Any, _size: int) -> int:
        memory._obj.private = self.private
        memory._obj.working_set = self.private and self.private + 2 * GIB
        return 0 if "memory" in self.refuses else 1

    def GetProcessIoCounters(self, _process: int, counters: Any) -> int:
        counters._obj.read_bytes = 42
        return 0 if "io" in self.refuses else 1


class FakeNt:
    def __init__(self) -> None:
        self.resumed: list[int] = []
        self.status = 0

    def NtResumeProcess(self, process: int) -> int:
        self.resumed.append(process)
        return self.status


class FakeRuntime:
    def get_osfhandle(self, descriptor: int) -> int:
        return descriptor + 100

    def open_osfhandle(self, handle: int, _flags: int) -> int:
        return handle + 1


class FakeProcess:
    def __init__(self) -> None:
        self.pid = 4242
        self._handle = 99
        self.code: int | None = None
        self.killed = False

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.killed = True


class FakeWin32(Win32):
    """The real class over fake libraries; only the start of a process is replaced."""

    def __init__(self) -> None:
        self.fake = FakeKernel()
        self.nt = FakeNt()
        self.process = FakeProcess()
        self.started: dict[str, Any] = {}
        super().__init__(self.fake, self.nt, FakeRuntime())

    def start(self, argv: Any, **how: Any) -> Any:
        if "start" in self.fake.refuses:
            raise FileNotFoundError("no such program")
        self.started = {"argv": list(argv), **how}
        return self.process


def test_job_limits_commit_and_ends_with_its_handle() -> None:
    api = FakeWin32()
    job, held = make_job(api, LIMITS)
    assert job == 77
    assert held.kind is CapKind.JOB_OBJECT
    assert held.limit_bytes == 1 * GIB
    assert api.fake.limits.flags & LIMIT_KILL_ON_CLOSE
    assert api.fake.limits.flags & LIMIT_JOB_MEMORY
    assert api.fake.limits.priority_class == BELOW_NORMAL_PRIORITY_CLASS


@pytest.mark.parametrize("refused", ["create", "set"])
def test_job_that_is_refused_leaves_nothing(refused: str) -> None:
    api = FakeWin32()
    api.fake.refuses.add(refused)
    with pytest.raises(NotHeld, match="no Job Object"):
        make_job(api, LIMITS)
    assert api.fake.closed == ([] if refused == "create" else [77])


def test_job_limit_that_does_not_read_back_is_refused() -> None:
    api = FakeWin32()
    api.fake.cut = 100 * MIB
    with pytest.raises(NotHeld, match="it reads"):
        make_job(api, LIMITS)
    assert api.fake.closed == [77]
    with pytest.raises(NotHeld, match="overflows"):
        make_job(api, KernelLimits(1, 1, 1 << 63, on_gpu=False))


def launch(own_mib: int = 512) -> Launch:
    return Launch("w", "model", ["engine.exe"], {"A": "1"}, "", Caps(own_mib * MIB))


def test_worker_is_in_its_job_before_it_runs() -> None:
    api = FakeWin32()
    spawner = WindowsSpawner(GuardOptions(), api)
    assert spawner.expected_cap().kind is CapKind.JOB_OBJECT
    child = spawner.spawn(launch(), (0, 1, 2))
    assert api.started["suspended"]
    assert api.started["env"]["A"] == "1"
    assert api.fake.assigned == [(77, 99)]
    assert api.nt.resumed == [99]
    assert child.held is not None
    assert spawner.poll_report(child)
    assert spawner.oom_kills(child) == -1
    assert spawner.handle_to_send(child) == ()
    assert spawner.reap(child) is None
    spawner.kill(child)
    api.process.code = KILLED_CODE
    status = spawner.reap(child)
    assert status is not None
    assert status.exit_signal == 9
    assert status.peak_bytes == 123 * MIB
    assert api.fake.closed == [77]
    spawner.close()


@pytest.mark.parametrize("refused", ["create", "start", "assign"])
def test_worker_without_a_job_is_not_started(refused: str) -> None:
    api = FakeWin32()
    api.fake.refuses.add(refused)
    spawner = WindowsSpawner(GuardOptions(), api)
    with pytest.raises(SpawnFailed):
        spawner.spawn(launch(), (0, 1, 2))
    assert api.process.killed == (refused == "assign")


def test_worker_that_cannot_be_resumed_is_ended() -> None:
    api = FakeWin32()
    api.nt.status = 1
    with pytest.raises(SpawnFailed, match="NtResumeProcess"):
        WindowsSpawner(GuardOptions(), api).spawn(launch(), (0, 1, 2))
    assert api.process.killed
    with pytest.raises(SpawnFailed, match="below 64 MiB"):
        WindowsSpawner(GuardOptions(), api).spawn(launch(own_mib=1), (0, 1, 2))


def test_spawner_close_ends_what_is_left() -> None:
    api = FakeWin32()
    spawner = WindowsSpawner(GuardOptions(), api)
    spawner.spawn(launch(), (0, 1, 2))
    spawner.close()
    assert api.fake.closed == [77]


def test_exit_codes_are_told_as_signals_and_refused_memory() -> None:
    assert exit_status(0xC0000005).exit_signal == 11
    assert exit_status(-1073741819).exit_signal == 11
    assert exit_status(0xC0000017).exit_code == EXIT_ALLOCATION_FAILED
    assert exit_status(3).exit_code == 3


def test_sampler_reads_commit_and_warns_by_headroom() -> None:
    api = FakeWin32()
    sampler = WindowsSampler(api)
    calm = sampler.machine(slow=True)
    assert (calm.available_bytes, calm.total_bytes) == (9 * GIB, 16 * GIB)
    assert not calm.is_warning
    api.fake.commit_free = 1 * GIB
    assert sampler.machine(slow=True).is_warning
    api.fake.commit_free = GIB // 2
    assert not sampler.machine(slow=True).is_critical
    api.fake.is_low = True
    assert sampler.machine(slow=True).is_critical


def test_sampler_reads_a_worker_until_it_is_gone() -> None:
    api = FakeWin32()
    sampler = WindowsSampler(api)
    assert sampler.worker("w", slow=True) is None
    sampler.watch(Child("w", 1, 0.0, 99))
    found = sampler.worker("w", slow=True)
    assert found is not None
    assert found.own_bytes == 700 * MIB
    assert found.mapped_bytes == 2 * GIB
    assert found.read_bytes == 42
    api.fake.refuses.add("io")
    again = sampler.worker("w", slow=True)
    assert again is not None
    assert again.read_bytes == -1
    api.fake.private = 0
    assert sampler.worker("w", slow=False) is None
    api.fake.refuses.add("memory")
    assert sampler.worker("w", slow=False) is None
    sampler.forget("w")
    sampler.forget("w")


def test_descriptors_are_taken_out_of_the_other_process() -> None:
    api = FakeWin32()
    assert api.handle_of(3) == 103
    assert api.take_descriptors(1, [103, 104]) == (1104, 1105)
    assert api.fake.closed == [5]
    api.fake.refuses.add("open")
    with pytest.raises(OSError, match="OpenProcess"):
        api.take_descriptors(1, [1])


def test_packet_carries_handles() -> None:
    assert unpack(pack(b"hello", 7, [1, 2])) == (7, (1, 2), b"hello")


@pytest.fixture
def links() -> Iterator[tuple[WindowsLink, WindowsLink]]:
    ours, theirs = multiprocessing.Pipe(duplex=True)
    pair = WindowsLink(ours, FakeWin32()), WindowsLink(theirs, FakeWin32())
    yield pair
    for link in pair:
        link.close()


def test_windows_link_carries_messages_and_handles(
    links: tuple[WindowsLink, WindowsLink],
) -> None:
    ours, theirs = links
    ours.send(b"one", [4])
    ours.flush()
    ours.send(b"two")
    packets: list[Packet] = []
    while len(packets) < 2:
        theirs.wait(5.0, [])
        packets += theirs.receive()
    assert [packet.data for packet in packets] == [b"one", b"two"]
    assert packets[0].descriptors == (1105,)
    assert packets[1].descriptors == ()


def test_windows_link_closed_is_told(links: tuple[WindowsLink, WindowsLink]) -> None:
    ours, theirs = links
    ours.close()
    with pytest.raises(LinkClosed):
        ours.send(b"x")
    theirs.wait(5.0, [])
    with pytest.raises(LinkClosed):
        theirs.receive()


class FakePdh:
    """Counters of two processes, one of them on two engines."""

    names = ("pid_10_luid_0x1_phys_0", "pid_10_luid_0x1_phys_1", "pid_20_luid_0x1_phys_0", "total")

    def __init__(self, *, works: bool = True) -> None:
        self.works = works
        self.paths: list[str] = []

    def PdhOpenQueryW(self, *_: Any) -> int:
        return 0 if self.works else 1

    def PdhAddEnglishCounterW(self, _query: Any, path: str, _data: Any, counter: Any) -> int:
        self.paths.append(path)
        counter._obj.value = len(self.paths)
        return 0

    def PdhCollectQueryData(self, _query: Any) -> int:
        return 0

    def PdhGetFormattedCounterArrayW(
        self, counter: Any, _format: int, size: Any, count: Any, buffer: Any
    ) -> int:
        if buffer is None:
            size._obj.value = ctypes.sizeof(CounterItem) * len(self.names)
            return PDH_MORE_DATA
        items = ctypes.cast(buffer, ctypes.POINTER(CounterItem))
        for index, name in enumerate(self.names):
            items[index].name = name
            items[index].value = (1000 if counter.value == 1 else 10) * (index + 1)
        count._obj.value = len(self.names)
        return 0


def no_nvml() -> Any:
    raise ImportError("no such library")


def test_gpu_counters_are_summed_by_process() -> None:
    gpus = PdhGpus(FakePdh(), NvmlGpus(no_nvml))
    (reading,) = gpus.read((10,))
    assert reading.by_pid == {10: 3000, 20: 3000}
    assert reading.shared_by_pid == {10: 30, 20: 30}
    assert reading.free_bytes == -1
    assert FakePdh().paths == []
    assert {DEDICATED, SHARED} == set(gpus._counters)


def test_gpu_counters_that_do_not_exist_are_nothing() -> None:
    assert PdhGpus(FakePdh(works=False), NvmlGpus(no_nvml)).read((10,)) == ()


def test_pid_of_this_process_travels_in_the_packet() -> None:
    assert unpack(pack(b"", os.getpid(), []))[0] == os.getpid()
