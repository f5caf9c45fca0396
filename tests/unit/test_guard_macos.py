"""The guard's macOS half with the system's calls faked at their edge."""

import ctypes
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.lifecycle import CapKind
from app.guard import keeper, spawn_macos
from app.guard.child import Child, SpawnFailed
from app.guard.lines import GIB, MIB
from app.guard.options import GuardOptions, for_system
from app.guard.protocol import Caps, Launch
from app.guard.sampler_macos import MacosSampler
from app.guard.spawn_macos import MacosSpawner


class FakeSystem:
    """libSystem: one process, and sysctl values by name."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {
            "hw.memsize": 32 * GIB,
            "kern.memorystatus_level": 40,
            "kern.memorystatus_vm_pressure_level": 1,
        }
        self.footprint = 3 * GIB
        self.resident = 5 * GIB
        self.status = 0

    def sysctlbyname(self, name: bytes, value: Any, *_: Any) -> int:
        if name == b"vm.swapusage":
            value._obj.used = 2 * GIB
            return 0
        if name.decode() not in self.values:
            return -1
        value._obj.value = self.values[name.decode()]
        return 0

    def proc_pid_rusage(self, _pid: int, flavour: int, info: Any) -> int:
        assert flavour == 4
        info._obj.numbers[6] = self.resident
        info._obj.numbers[7] = self.footprint
        info._obj.numbers[16] = 77
        return self.status


def test_macos_machine_is_read_from_sysctl() -> None:
    system = FakeSystem()
    sampler = MacosSampler(system)
    machine = sampler.machine(slow=True)
    assert machine.total_bytes == 32 * GIB
    assert machine.available_bytes == 32 * GIB * 40 // 100
    assert machine.swap_used_bytes == 2 * GIB
    assert not machine.is_warning
    system.values["kern.memorystatus_vm_pressure_level"] = 4
    assert sampler.machine(slow=True).is_critical
    del system.values["kern.memorystatus_level"]
    assert sampler.machine(slow=True).available_bytes == 32 * GIB


def test_macos_worker_is_judged_by_its_footprint() -> None:
    system = FakeSystem()
    sampler = MacosSampler(system)
    assert sampler.worker("w", slow=True) is None
    sampler.watch(Child("w", 10, 0.0, -1))
    found = sampler.worker("w", slow=True)
    assert found is not None
    assert found.own_bytes == 3 * GIB
    assert found.mapped_bytes == 2 * GIB
    assert found.read_bytes == 77
    system.footprint = system.resident = 0
    assert sampler.worker("w", slow=False) is None
    system.status = -1
    assert sampler.worker("w", slow=False) is None
    sampler.forget("w")


def test_macos_rusage_has_the_size_of_the_header() -> None:
    from app.guard.sampler_macos import RusageInfo

    assert ctypes.sizeof(RusageInfo) >= 296


def test_macos_waits_longer_for_freed_memory() -> None:
    assert for_system(GuardOptions(), "darwin").lines.cancel_deadline_s == 1.0
    assert for_system(GuardOptions(), "linux").lines.cancel_deadline_s == 0.5


class FakeQueue:
    def control(self, _events: Any, _count: int) -> list[Any]:
        return []

    def fileno(self) -> int:
        return 500

    def close(self) -> None:
        pass


@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
def test_macos_worker_is_started_watched_and_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    events = SimpleNamespace(
        kqueue=FakeQueue,
        kevent=lambda *_, **__: None,
        KQ_FILTER_PROC=1,
        KQ_EV_ADD=1,
        KQ_NOTE_EXIT=1,
    )
    monkeypatch.setattr(spawn_macos, "_events", events)
    spawner = MacosSpawner(GuardOptions())
    assert spawner.expected_cap().kind is CapKind.WATCH_ONLY
    assert "no memory limit" in spawner.expected_cap().tried[0]
    null = os.open(os.devnull, os.O_RDWR)
    caps = Caps(256 * MIB)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    child = spawner.spawn(Launch("w", "m", command, {}, "", caps), (null, null, null))
    assert child.handle == 500
    assert spawner.poll_report(child)
    assert spawner.handle_to_send(child) == ()
    assert spawner.oom_kills(child) == -1
    assert spawner.reap(child) is None
    spawner.kill(child)
    status = None
    while status is None:
        status = spawner.reap(child)
    assert status.exit_signal == signal.SIGKILL
    with pytest.raises(SpawnFailed, match="could not be started"):
        spawner.spawn(Launch("x", "m", ["/none"], {}, "", caps), (null, null, null))
    with pytest.raises(SpawnFailed, match="below"):
        spawner.spawn(Launch("x", "m", ["/none"], {}, "", Caps(1)), (null, null, null))
    os.close(null)
    spawner.close()


def test_keeper_ends_what_is_left_when_the_guard_is_gone() -> None:
    killed: list[int] = []
    read_end, write_end = os.pipe()
    os.write(write_end, b"+10\n+11\n+1")
    os.write(write_end, b"2\n-11\nnonsense\n")
    os.close(write_end)
    assert keeper.keep(read_end, lambda group, _signal: killed.append(group)) == 0
    os.close(read_end)
    assert set(killed) == {10, 12}
