"""The match between what drivers tell and what the engine can compute on."""

import pytest

from app.core.hardware import drm, engine_devices, nvml, probe
from app.core.hardware.engine_devices import EngineDevice, match, parse_device_list
from app.core.hardware.facts import device_facts
from app.core.hardware.machine import Gpu, Machine, imagined_machine
from app.core.hardware.nvml import NvmlReading

GIB = 1 << 30
MIB = 1 << 20
BIG = Gpu("CUDA0", "RTX 4090", 24 * GIB, 23 * GIB, kind="cuda", pci="0000:01:00.0", uuid="a")
SMALL = Gpu("CUDA1", "RTX 3070", 8 * GIB, 7 * GIB, kind="cuda", pci="0000:0a:00.0", uuid="b")
AMD = Gpu("Vulkan0", "AMD GPU", 16 * GIB, 15 * GIB, kind="vulkan", pci="0000:03:00.0")


def engine(name: str, pci: str = "", **more: bool) -> EngineDevice:
    return EngineDevice(name, f"{name} as the engine calls it", 9 * GIB, 8 * GIB, pci=pci, **more)


def test_match_by_address_takes_the_engines_order() -> None:
    gpus = match([SMALL, BIG], [engine("CUDA0", BIG.pci), engine("CUDA1", SMALL.pci)])
    assert [(gpu.device, gpu.name) for gpu in gpus] == [
        ("CUDA0", "RTX 4090"),
        ("CUDA1", "RTX 3070"),
    ]
    assert all(gpu.is_usable for gpu in gpus)


def test_match_without_addresses_goes_by_kind_and_order() -> None:
    gpus = match([BIG, SMALL], [engine("CUDA0"), engine("CUDA1")])
    assert [gpu.uuid for gpu in gpus] == ["a", "b"]


def test_match_engine_without_gpu_support_marks_cards_unusable() -> None:
    (gpu,) = match([BIG], [])
    assert not gpu.is_usable
    assert "CUDA" in gpu.reason


def test_match_engine_that_could_not_be_asked_marks_cards_unusable() -> None:
    (gpu,) = match([BIG], None)
    assert not gpu.is_usable
    assert "asked" in gpu.reason


def test_match_nvidia_card_through_vulkan_keeps_its_driver_figures() -> None:
    (gpu,) = match([BIG], [engine("Vulkan0", BIG.pci)])
    assert (gpu.device, gpu.kind, gpu.total_bytes) == ("Vulkan0", "vulkan", 24 * GIB)


def test_match_amd_card_through_rocm_is_found() -> None:
    (gpu,) = match([AMD], [engine("ROCm0")])
    assert (gpu.device, gpu.kind, gpu.pci) == ("ROCm0", "rocm", AMD.pci)


def test_match_device_that_no_driver_told_of_is_taken_from_the_engine() -> None:
    (gpu,) = match([], [engine("Vulkan0", is_integrated=True)])
    assert (gpu.total_bytes, gpu.free_bytes, gpu.is_integrated) == (9 * GIB, 8 * GIB, True)
    assert gpu.has_display


def test_match_card_listed_by_two_backends_counts_once() -> None:
    gpus = match([BIG], [engine("CUDA0", BIG.pci), engine("Vulkan0", BIG.pci)])
    assert [gpu.device for gpu in gpus] == ["CUDA0"]


def test_device_list_of_llama_server_is_parsed() -> None:
    text = (
        "Available devices:\n"
        "  CUDA0: NVIDIA GeForce RTX 3080 (10239 MiB, 9123 MiB free)\n"
        "  Vulkan0: AMD Radeon RX 6600 (RADV NAVI23) (8176 MiB, 8000 MiB free)\n"
        "  BLAS: OpenBLAS (0 MiB, 0 MiB free)\n"
    )
    first, second = parse_device_list(text)
    assert (first.name, first.total_bytes, first.free_bytes) == ("CUDA0", 10239 * MIB, 9123 * MIB)
    assert second.description == "AMD Radeon RX 6600 (RADV NAVI23)"


def test_engine_devices_real_engine_answers() -> None:
    engine_devices.engine_devices.cache_clear()
    assert engine_devices.engine_devices() is not None


def test_probe_asks_the_engine_only_where_there_are_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def ask() -> tuple[EngineDevice, ...]:
        asked.append(1)
        return (engine("CUDA0", BIG.pci),)

    monkeypatch.setattr(probe, "engine_devices", ask)
    monkeypatch.setattr(drm, "read_drm", lambda *_: ())
    monkeypatch.setattr(nvml, "read_nvml", NvmlReading)
    assert probe.probe_machine().gpus == ()
    assert not asked
    monkeypatch.setattr(nvml, "read_nvml", lambda: NvmlReading((BIG,), "a card is lost"))
    machine = probe.probe_machine()
    assert [gpu.device for gpu in machine.usable_gpus] == ["CUDA0"]
    assert machine.problems == ("a card is lost",)
    assert asked


def test_facts_tell_of_every_device() -> None:
    (idle,) = match([BIG], [])
    machine = Machine(
        16 * GIB, 9 * GIB, 2 * GIB, GIB, gpus=(idle,), physical_cores=8, problems=("lost",)
    )
    facts = {fact.device: fact for fact in device_facts(machine)}
    assert "never counted" in facts["swap"].sentence
    assert "Not used" in facts["CUDA0"].sentence
    assert facts["GPU"].level == "problem"


def test_imagined_machine_is_idle_but_not_empty() -> None:
    machine = imagined_machine(64 * GIB, [24 * GIB])
    assert machine.ram_available_bytes == 62 * GIB
    assert machine.gpus[0].has_display
    assert imagined_machine(8 * GIB).ram_available_bytes == 7 * GIB
