"""macOS and Windows readings with the system faked at the edge, and GPUs remembered between starts."""

import dataclasses
import subprocess
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from app.core.hardware import probe_macos, probe_windows
from app.core.hardware.last_seen import missing_gpus, missing_sentence, remember_gpus
from app.core.hardware.machine import Gpu, Machine
from app.core.hardware.memory import Memory
from app.core.paths import Paths

GIB = 1 << 30


def fake_memory(monkeypatch: pytest.MonkeyPatch, total: int, available: int, swap: int) -> None:
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: SimpleNamespace(total=total, available=available)
    )
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(total=2 * swap, free=swap))


def fake_sysctl(monkeypatch: pytest.MonkeyPatch, answers: dict[str, str]) -> None:
    def run(argv: list[str], **_: Any) -> SimpleNamespace:
        return SimpleNamespace(stdout=answers.get(argv[-1], ""))

    monkeypatch.setattr(subprocess, "run", run)


def test_windows_memory_is_bounded_by_what_can_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake_memory(monkeypatch, 16 * GIB, 9 * GIB, 4 * GIB)
    memory = probe_windows.read_memory()
    assert (memory.total_bytes, memory.available_bytes) == (16 * GIB, 9 * GIB)
    assert (memory.swap_total_bytes, memory.swap_free_bytes) == (8 * GIB, 4 * GIB)


def test_windows_cores_fall_back_to_logical_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else None)
    assert probe_windows.read_cores().physical == 8


def test_macos_gpu_takes_the_systems_share_of_ram(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sysctl(monkeypatch, {"iogpu.wired_limit_mb": "0"})
    (gpu,) = probe_macos.read_gpus(Memory(16 * GIB, 9 * GIB), "arm64")
    assert gpu.total_bytes == int(16 * GIB * 2 / 3)
    assert gpu.free_bytes == 9 * GIB
    assert gpu.is_integrated
    (large,) = probe_macos.read_gpus(Memory(64 * GIB, 60 * GIB), "arm64")
    assert large.total_bytes == 48 * GIB


def test_macos_limit_set_by_the_user_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sysctl(monkeypatch, {"iogpu.wired_limit_mb": "14336"})
    (gpu,) = probe_macos.read_gpus(Memory(16 * GIB, 15 * GIB), "arm64")
    assert gpu.total_bytes == 14 * GIB


def test_macos_intel_has_no_gpu_for_models() -> None:
    assert probe_macos.read_gpus(Memory(16 * GIB, 9 * GIB), "x86_64") == ()


def test_macos_threads_are_counted_on_fast_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_sysctl(monkeypatch, {"hw.perflevel0.physicalcpu": "4"})
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 10)
    cores = probe_macos.read_cores()
    assert (cores.physical, cores.logical) == (4, 10)
    fake_sysctl(monkeypatch, {})
    assert probe_macos.read_cores().physical == 10


def with_gpus(*gpus: Gpu) -> Machine:
    return Machine(16 * GIB, 9 * GIB, gpus=gpus)


CARD = Gpu("CUDA0", "RTX 4090", 24 * GIB, 24 * GIB, uuid="GPU-a")
OTHER = Gpu("Vulkan0", "RX 6600", 8 * GIB, 8 * GIB, pci="0000:03:00.0")


def test_gpus_that_are_gone_are_named(coolhead_home: Paths) -> None:
    assert missing_gpus(coolhead_home, with_gpus(CARD)) == ()
    remember_gpus(coolhead_home, with_gpus(CARD, OTHER))
    assert missing_gpus(coolhead_home, with_gpus(OTHER, CARD)) == ()
    assert missing_gpus(coolhead_home, with_gpus(OTHER)) == ("RTX 4090",)
    unusable = dataclasses.replace(CARD, is_usable=False, reason="no CUDA support")
    assert missing_gpus(coolhead_home, with_gpus(unusable)) == ("RTX 4090", "RX 6600")
    remember_gpus(coolhead_home, with_gpus(OTHER))
    assert missing_gpus(coolhead_home, with_gpus(OTHER)) == ()


def test_gpus_damaged_memory_of_them_is_nothing(coolhead_home: Paths) -> None:
    (coolhead_home.state / "gpus.json").write_text('{"a": 1}')
    assert missing_gpus(coolhead_home, with_gpus()) == ()


def test_gpus_missing_are_said_with_what_to_do() -> None:
    assert missing_sentence(()) == ""
    assert "nothing is loaded" in missing_sentence(("RTX 4090",))
