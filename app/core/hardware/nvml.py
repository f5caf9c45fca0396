"""NVIDIA cards, read through NVML (nvidia-ml-py). Blocking, some milliseconds once it is open.

Called by `probe.py` and by whoever needs a card's memory per process. NVML is opened once and kept;
it is thread-safe. Its order is that of the bus, which need not be the engine's: cards are matched by
bus address in `engine_devices.py`.
"""

import logging
from dataclasses import dataclass
from typing import Any

from app.core.hardware.machine import Gpu, GpuProcess

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NvmlReading:
    """The cards, and what kept others from being read, in a sentence."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


def read_nvml() -> NvmlReading:
    """The NVIDIA cards of this machine; none, without a word, where there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError as error:
        return NvmlReading(problem=_why_no_driver(pynvml, error))
    gpus, problems = [], []
    for index in range(count):
        try:
            gpus.append(_read_card(pynvml, index, driver))
        except pynvml.NVMLError as error:
            # A card that fell off the bus must not hide the others.
            problems.append(f"NVIDIA card {index} cannot be read ({error}).")
    return NvmlReading(tuple(gpus), " ".join(problems))


def _why_no_driver(pynvml: Any, error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError_LibraryNotFound):
        return ""
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        return (
            "The NVIDIA driver was updated while the old one is still loaded; restart the machine "
            "to use the card again."
        )
    if isinstance(error, pynvml.NVMLError_DriverNotLoaded):
        return "The NVIDIA driver is installed but not loaded; NVIDIA cards cannot be used."
    return f"NVIDIA cards cannot be read ({error})."


def _read_card(pynvml: Any, index: int, driver: str) -> Gpu:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = _or_none(pynvml, pynvml.nvmlDeviceGetMemoryInfo, handle)
    pci = pynvml.nvmlDeviceGetPciInfo(handle)
    return Gpu(
        device=f"CUDA{index}",
        name=str(pynvml.nvmlDeviceGetName(handle)),
        total_bytes=int(memory.total) if memory else 0,
        free_bytes=int(memory.free) if memory else 0,
        has_display=_has_display(pynvml, handle),
        # Chips whose GPU works in RAM (Grace, Tegra) answer "not supported" here.
        is_integrated=memory is None,
        uuid=str(_or_none(pynvml, pynvml.nvmlDeviceGetUUID, handle) or ""),
        driver=driver,
        kind="cuda",
        pci=pci_address(_text(pci.busId)),
        processes=_processes(pynvml, handle),
    )


def _has_display(pynvml: Any, handle: Any) -> bool:
    """A screen is driven from it, or one is plugged in."""
    active = _or_none(pynvml, pynvml.nvmlDeviceGetDisplayActive, handle)
    plugged = _or_none(pynvml, pynvml.nvmlDeviceGetDisplayMode, handle)
    return bool(active) or bool(plugged)


def _processes(pynvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
    found: dict[int, int] = {}
    for ask in (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
    ):
        for process in _or_none(pynvml, ask, handle) or ():
            # None under Windows' driver model, where the system keeps the books.
            used = int(process.usedGpuMemory or 0)
            found[process.pid] = max(found.get(process.pid, 0), used)
    return tuple(GpuProcess(pid, used) for pid, used in sorted(found.items()))


def _or_none(pynvml: Any, ask: Any, handle: Any) -> Any:
    try:
        return ask(handle)
    except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
        return None
    except pynvml.NVMLError as error:
        _log.debug("NVML: %s: %s", getattr(ask, "__name__", ask), error)
        return None


def _text(raw: object) -> str:
    return raw.decode("ascii", "replace") if isinstance(raw, bytes) else str(raw)


def pci_address(text: str) -> str:
    """A bus address as Linux writes it: NVML's "00000000:01:00.0" becomes "0000:01:00.0"."""
    domain, _, rest = text.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}" if rest else ""
    except ValueError:
        return ""
