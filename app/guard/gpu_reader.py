"""GPU memory by process: NVIDIA's library, and the kernel's own account for AMD and Intel.

Runs in the reader, never in the watchdog's loop: a driver may hang, or take 100 ms.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from app.guard.reader import GpuReading

_UNITS = {"KiB": 1024, "MiB": 1024 * 1024, "": 1}


class NvmlGpus:
    """Devices and processes as NVIDIA's library tells them, under the engine's names.

    The library's order is the bus order, and workers are started with CUDA_DEVICE_ORDER=PCI_BUS_ID so
    that theirs is the same. An engine's numbers count within what the user's CUDA_VISIBLE_DEVICES
    shows, so these do too.

    Args:
        load: the library; tests pass their own.
        environ: the guard's environment, which is the app's.
    """

    def __init__(
        self, load: Callable[[], Any] | None = None, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._load = load or _load_nvml
        self._visible = [
            word.strip() for word in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        ]
        self._nvml: Any = None
        self._has_failed = False

    def read(self) -> tuple[GpuReading, ...]:
        """Nothing where there is no such library or driver; it is tried once."""
        if self._has_failed:
            return ()
        try:
            if self._nvml is None:
                self._nvml = self._load()
                self._nvml.nvmlInit()
            shown = self._shown(int(self._nvml.nvmlDeviceGetCount()))
        except Exception:  # noqa: BLE001 - whatever a driver raises, it cannot be read
            self._has_failed = True
            return ()
        return tuple(
            reading
            for number, index in enumerate(shown)
            if (reading := self._device(f"CUDA{number}", index)) is not None
        )

    def _shown(self, count: int) -> list[int]:
        """The cards that engines see, in their order."""
        found: list[int] = []
        for word in self._visible:
            if word.isdigit() and int(word) < count:
                found.append(int(word))
            elif word.startswith("GPU-"):
                found.extend(index for index in range(count) if self._uuid(index).startswith(word))
        return found or list(range(count))

    def _uuid(self, index: int) -> str:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        return str(self._nvml.nvmlDeviceGetUUID(handle))

    def _device(self, name: str, index: int) -> GpuReading | None:
        """One card; None for one that cannot be read, which must not hide the others."""
        try:
            return self._read_device(name, index)
        except self._nvml.NVMLError:
            return None

    def _read_device(self, name: str, index: int) -> GpuReading:
        nvml = self._nvml
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        memory = nvml.nvmlDeviceGetMemoryInfo(device)
        by_pid: dict[int, int] = {}
        for call in (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
        ):
            with contextlib.suppress(nvml.NVMLError):
                for process in call(device):
                    # None where the driver does not tell (WDDM).
                    if process.usedGpuMemory is not None:
                        taken = by_pid.get(process.pid, 0)
                        by_pid[process.pid] = max(taken, int(process.usedGpuMemory))
        return GpuReading(name, int(memory.total), int(memory.free), by_pid)


def _load_nvml() -> Any:
    import pynvml

    return pynvml


def read_fdinfo(pids: tuple[int, ...], proc: str = "/proc") -> tuple[GpuReading, ...]:
    """What the kernel's drivers (amdgpu, i915, xe) say of each process, by bus address.

    Memory of the host that a GPU uses (GTT) is in neither RSS nor a control group, so this is the
    only place where it can be seen.
    """
    own: dict[str, dict[int, int]] = {}
    shared: dict[str, dict[int, int]] = {}
    for pid in pids:
        clients: set[tuple[str, str]] = set()
        try:
            files = list(Path(proc, str(pid), "fdinfo").iterdir())
        except OSError:
            continue
        for file in files:
            fields = _drm_fields(file)
            device, client = fields.get("drm-pdev", ""), fields.get("drm-client-id", "")
            if not client or (device, client) in clients:
                continue
            clients.add((device, client))
            taken = _bytes(fields, "vram")
            host = _bytes(fields, "gtt") + _bytes(fields, "system0")
            own.setdefault(device, {})[pid] = own.get(device, {}).get(pid, 0) + taken
            shared.setdefault(device, {})[pid] = shared.get(device, {}).get(pid, 0) + host
    return tuple(GpuReading(f"drm:{device}", 0, -1, own[device], shared[device]) for device in own)


def _drm_fields(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return {}
    if "drm-client-id" not in text:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _bytes(fields: dict[str, str], region: str) -> int:
    for key in (f"drm-resident-{region}", f"drm-memory-{region}"):
        number, _, unit = fields.get(key, "").partition(" ")
        if number.isdigit():
            return int(number) * _UNITS.get(unit, 1)
    return 0
