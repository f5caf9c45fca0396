"""What is true of this machine's devices, as sentences with what to do: no engine is needed for it.

For `coolhead doctor` and the panel's page on hardware. Pure.
"""

from dataclasses import dataclass
from typing import Literal

from app.core.hardware.machine import Gpu, Machine
from app.core.settings_meta import GIB, MIB

Level = Literal["ok", "note", "problem"]
SMALL_RAM_BYTES = 4 * GIB


@dataclass(frozen=True, slots=True)
class DeviceFact:
    """`device` is "RAM", "swap", "CPU" or a GPU's name; `advice` is empty where nothing is to do."""

    device: str
    level: Level
    sentence: str
    advice: str = ""


def device_facts(machine: Machine) -> tuple[DeviceFact, ...]:
    """RAM, swap, processor, each GPU, and what could not be read."""
    found = [_ram(machine), _swap(machine), _cpu(machine)]
    found += [_gpu(gpu) for gpu in machine.gpus]
    if not machine.gpus:
        found.append(DeviceFact("GPU", "note", "No GPU was found; models run on the processor."))
    found += [
        DeviceFact("GPU", "problem", problem, "Models run on the processor until it is mended.")
        for problem in machine.problems
    ]
    return tuple(found)


def _ram(machine: Machine) -> DeviceFact:
    total, available = machine.ram_total_bytes, machine.ram_available_bytes
    sentence = f"{total / GIB:.1f} GiB, {available / GIB:.1f} GiB available."
    if machine.unified_memory:
        sentence += " The GPU works in it too."
    if total < SMALL_RAM_BYTES:
        return DeviceFact("RAM", "note", sentence, "Only the smallest models fit beside a desktop.")
    return DeviceFact("RAM", "ok", sentence)


def _swap(machine: Machine) -> DeviceFact:
    if not machine.swap_total_bytes:
        return DeviceFact("swap", "ok", "None.")
    total, free = machine.swap_total_bytes, machine.swap_free_bytes
    return DeviceFact(
        "swap",
        "ok",
        f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB free; never counted as memory for models.",
    )


def _cpu(machine: Machine) -> DeviceFact:
    cores = machine.physical_cores
    what = "core" if cores == 1 else "cores"
    return DeviceFact("CPU", "ok", f"{cores} physical {what}, {machine.logical_cores} threads.")


def _gpu(gpu: Gpu) -> DeviceFact:
    sizes = f"{gpu.total_bytes / MIB:,.0f} MiB, {gpu.free_bytes / MIB:,.0f} MiB free"
    shared = " of the machine's RAM" if gpu.is_integrated else ""
    screen = ", drives a screen" if gpu.has_display else ""
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    sentence = f"{gpu.name}: {sizes}{shared}{screen}{driver}."
    if gpu.is_usable:
        return DeviceFact(gpu.device, "ok", sentence)
    return DeviceFact(
        gpu.device,
        "note",
        f"{sentence} Not used: {gpu.reason}.",
        "`coolhead engine` shows how to install an engine that can use it.",
    )
