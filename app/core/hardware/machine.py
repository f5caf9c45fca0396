"""What this machine has, as one immutable picture: memory, processors, GPUs. Pure.

`probe.py` takes it; plans, presets, pages and the command line read it. Swap is told but is never
memory: no sum in this project counts it.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from app.core.settings_meta import GIB

GpuKind = Literal["cuda", "vulkan", "rocm", "metal", "sycl"]


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """What one process holds of a GPU's memory; 0 bytes where the driver does not say."""

    pid: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Sizes in bytes.

    Attributes:
        device: as the engine names it ("CUDA0", "Vulkan0", "MTL0").
        total_bytes: all of its memory; of an integrated GPU the share of RAM that it may use.
        free_bytes: not taken by any process now.
        has_display: a screen hangs on it, so that the desktop needs some of its memory.
        is_integrated: its memory is the machine's RAM.
        pci: bus address such as "0000:01:00.0"; empty where there is none.
        is_usable: an installed engine can compute on it; if not, `reason` says why.
        processes: who holds its memory, where the driver tells.
    """

    device: str
    name: str
    total_bytes: int
    free_bytes: int
    has_display: bool = False
    is_integrated: bool = False
    uuid: str = ""
    driver: str = ""
    kind: GpuKind = "cuda"
    pci: str = ""
    is_usable: bool = True
    reason: str = ""
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """Memory, processors and GPUs at one moment. Sizes in bytes.

    Attributes:
        ram_available_bytes: what can be had without swapping, as the kernel reckons it; mapped
            weights of running workers are not subtracted from it.
        unified_memory: the GPU works in RAM (Apple, integrated GPUs without another beside them).
        system: "linux", "darwin" or "windows".
        problems: what could not be read, in sentences.
    """

    ram_total_bytes: int
    ram_available_bytes: int
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    gpus: tuple[Gpu, ...] = ()
    physical_cores: int = 1
    logical_cores: int = 1
    unified_memory: bool = False
    system: str = "linux"
    problems: tuple[str, ...] = ()

    @property
    def usable_gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that an engine can compute on, in device order."""
        return tuple(gpu for gpu in self.gpus if gpu.is_usable)

    def gpu(self, device: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.device == device), None)

    def giving_back(self, ram_bytes: int, gpu_bytes: Mapping[str, int]) -> "Machine":
        """As if so much were free again, to plan for a model in the place of one that is loaded.

        Args:
            ram_bytes: what the loaded one owns in RAM (mapped weights are not seen anyway).
            gpu_bytes: what it holds on each device.
        """
        gpus = tuple(
            dataclasses.replace(
                gpu,
                free_bytes=min(gpu.total_bytes, gpu.free_bytes + gpu_bytes.get(gpu.device, 0)),
            )
            for gpu in self.gpus
        )
        available = min(self.ram_total_bytes, self.ram_available_bytes + ram_bytes)
        return dataclasses.replace(self, ram_available_bytes=available, gpus=gpus)


IDLE_DESKTOP_BYTES = 2 * GIB
"""RAM that a desktop with nothing open takes, at most an eighth of it, for imagined machines."""


def imagined_machine(
    ram_bytes: int, gpu_bytes: Iterable[int] = (), like: Machine | None = None
) -> Machine:
    """An otherwise idle machine with so much memory, to plan for another one than this.

    Its processor is that of `like`, else one of 8 cores; a screen hangs on its first GPU.
    """
    gpus = tuple(
        Gpu(
            device=f"CUDA{index}",
            name="imagined GPU",
            total_bytes=size,
            free_bytes=size,
            has_display=index == 0,
        )
        for index, size in enumerate(gpu_bytes)
        if size > 0
    )
    idle_bytes = min(IDLE_DESKTOP_BYTES, ram_bytes // 8)
    return Machine(
        ram_total_bytes=ram_bytes,
        ram_available_bytes=ram_bytes - idle_bytes,
        gpus=gpus,
        physical_cores=like.physical_cores if like else 8,
        logical_cores=like.logical_cores if like else 16,
        system=like.system if like else "linux",
    )
