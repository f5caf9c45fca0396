"""Takes the picture of this machine. Blocking: below 50 ms once the engine's list is known.

Called at start, before each load, by the panel's timer (in an executor) and by the command line. A
source that fails leaves a sentence in `Machine.problems`; the picture is always taken.
"""

import dataclasses
import platform
import sys

from app.core.hardware import drm, nvml
from app.core.hardware.engine_devices import EngineDevice, engine_devices, match
from app.core.hardware.machine import Gpu, Machine
from app.core.hardware.memory import Cores, Memory


def probe_machine(devices: tuple[EngineDevice, ...] | None = None) -> Machine:
    """What this machine has now.

    Args:
        devices: the GPUs of the engine that will run models, where it is another than the default
            one; the default engine's list is asked for where GPUs were found.
    """
    memory, cores = _read_system()
    problems: list[str] = []
    gpus = _read_gpus(memory, problems)
    if devices is None:
        devices = engine_devices() if gpus or sys.platform == "win32" else ()
    gpus = match(gpus, devices)
    return Machine(
        ram_total_bytes=memory.total_bytes,
        ram_available_bytes=memory.available_bytes,
        swap_total_bytes=memory.swap_total_bytes,
        swap_free_bytes=memory.swap_free_bytes,
        gpus=tuple(_with_ram(gpu, memory) for gpu in gpus),
        physical_cores=cores.physical,
        logical_cores=cores.logical,
        unified_memory=_is_unified(gpus),
        system=platform.system().lower(),
        problems=tuple(problems),
    )


def _read_system() -> tuple[Memory, Cores]:
    if sys.platform == "darwin":
        from app.core.hardware import probe_macos

        return probe_macos.read_memory(), probe_macos.read_cores()
    if sys.platform == "win32":
        from app.core.hardware import probe_windows

        return probe_windows.read_memory(), probe_windows.read_cores()
    from app.core.hardware import probe_linux

    return probe_linux.read_memory(), probe_linux.read_cores()


def _read_gpus(memory: Memory, problems: list[str]) -> tuple[Gpu, ...]:
    if sys.platform == "darwin":
        from app.core.hardware import probe_macos

        return probe_macos.read_gpus(memory, platform.machine())
    reading = nvml.read_nvml()
    if reading.problem:
        problems.append(reading.problem)
    if sys.platform == "win32":
        return reading.gpus
    return (*reading.gpus, *drm.read_drm(memory.total_bytes, memory.available_bytes))


def _with_ram(gpu: Gpu, memory: Memory) -> Gpu:
    """A GPU that works in RAM and does not say how much it may take: all that there is."""
    if gpu.total_bytes or not gpu.is_integrated:
        return gpu
    return dataclasses.replace(
        gpu, total_bytes=memory.total_bytes, free_bytes=memory.available_bytes
    )


def _is_unified(gpus: tuple[Gpu, ...]) -> bool:
    usable = [gpu for gpu in gpus if gpu.is_usable]
    return bool(usable) and all(gpu.is_integrated for gpu in usable)
