"""The GPUs as an installed engine sees them, and their match with what the drivers say.

The engine decides what can be computed on: a card that its build has no code for must not be planned
with. Its list is asked for in a throw-away process, once per process of ours, so that no GPU context
and none of the engine's memory stays with us. Blocking, about a second; `match` is pure.
"""

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

from app.core.hardware.machine import Gpu, GpuKind
from app.core.settings_meta import MIB

_log = logging.getLogger(__name__)

TIMEOUT_S = 30
HIDDEN_VERB = "devices"
KINDS: dict[str, GpuKind] = {
    "CUDA": "cuda",
    "Vulkan": "vulkan",
    "ROCm": "rocm",
    "HIP": "rocm",
    "MTL": "metal",
    "Metal": "metal",
    "SYCL": "sycl",
}
_LISTED = re.compile(r"^\s+(\w+): (.+) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """One device of an engine's list; sizes in bytes, `pci` empty where it is not told."""

    name: str
    description: str
    total_bytes: int
    free_bytes: int
    is_integrated: bool = False
    pci: str = ""

    @property
    def kind(self) -> GpuKind | None:
        """What it computes with; None for a processor or something unknown."""
        return KINDS.get(self.name.rstrip("0123456789"))


@lru_cache(maxsize=1)
def engine_devices() -> tuple[EngineDevice, ...] | None:
    """GPUs of the installed engine; None where it could not be asked."""
    try:
        answer = subprocess.run(
            _command(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=True,
            env={
                **os.environ,
                "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
                # As workers are started: CUDA's own order puts the fastest card first.
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            },
            stdin=subprocess.DEVNULL,
        )
        rows = json.loads(answer.stdout.splitlines()[-1])
        return tuple(EngineDevice(**row) for row in rows)
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError) as error:
        _log.warning("the engine's devices could not be listed: %s", error)
        return None


def _command() -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, HIDDEN_VERB]
    code = "from app.core.hardware.engine_devices import main; main()"
    return [sys.executable, "-P", "-c", code]


def main() -> int:
    """In the throw-away process: prints the list as one JSON line."""
    rows: list[dict[str, object]] = []
    try:
        import xllamacpp
    except ImportError:
        sys.stdout.write("[]\n")
        return 0
    for row in xllamacpp.get_device_info():
        kind = getattr(row["type"], "name", str(row["type"]))
        if not kind.endswith("GPU"):
            continue
        rows.append(
            dataclasses.asdict(
                EngineDevice(
                    row["name"],
                    row["description"],
                    int(row["memory_total"]),
                    int(row["memory_free"]),
                    kind.endswith("IGPU"),
                    str(row.get("device_id") or "").lower(),
                )
            )
        )
    sys.stdout.write(json.dumps(rows) + "\n")
    return 0


def parse_device_list(text: str) -> tuple[EngineDevice, ...]:
    """What `llama-server --list-devices` prints, as devices."""
    return tuple(
        EngineDevice(name, description, int(total) * MIB, int(free) * MIB)
        for name, description, total, free in _LISTED.findall(text)
        if name.rstrip("0123456789") in KINDS
    )


def match(gpus: Sequence[Gpu], devices: Sequence[EngineDevice] | None) -> tuple[Gpu, ...]:
    """The drivers' GPUs under the engine's names; those that it cannot use are marked so.

    Matched by bus address, else by kind and order. A device of the engine's that no driver told of is
    taken as the engine describes it.
    """
    if devices is None:
        return tuple(
            dataclasses.replace(
                gpu, is_usable=False, reason="the engine could not be asked for its devices"
            )
            for gpu in gpus
        )
    left = list(gpus)
    usable: list[Gpu] = []
    for device in devices:
        if device.kind is None:
            continue
        gpu = _partner(left, device)
        if gpu is None:
            if not any(_is_same_card(known, device) for known in usable):
                usable.append(_from_engine(device))
            continue
        left.remove(gpu)
        usable.append(
            dataclasses.replace(
                gpu,
                device=device.name,
                name=gpu.name if gpu.kind == "cuda" else device.description or gpu.name,
                kind=device.kind,
                total_bytes=gpu.total_bytes or device.total_bytes,
                free_bytes=gpu.free_bytes if gpu.total_bytes else device.free_bytes,
                is_integrated=gpu.is_integrated or device.is_integrated,
            )
        )
    idle = [
        dataclasses.replace(
            gpu, is_usable=False, reason=f"the installed engine has no {_need(gpu)} support"
        )
        for gpu in left
    ]
    return (*usable, *idle)


def _partner(left: Sequence[Gpu], device: EngineDevice) -> Gpu | None:
    if device.pci:
        by_address = next((gpu for gpu in left if gpu.pci == device.pci), None)
        if by_address is not None:
            return by_address
    for gpu in left:
        # Without addresses the order is all there is; an NVIDIA card may come as a Vulkan device.
        told_apart = bool(device.pci and gpu.pci)
        if not told_apart and (gpu.kind == device.kind or gpu.name in device.description):
            return gpu
        if not told_apart and {gpu.kind, cast("str", device.kind)} == {"vulkan", "rocm"}:
            return gpu
    return None


def _is_same_card(known: Gpu, device: EngineDevice) -> bool:
    """Builds with two backends list one card twice; the first one counts."""
    return bool(device.pci) and known.pci == device.pci


def _from_engine(device: EngineDevice) -> Gpu:
    return Gpu(
        device=device.name,
        name=device.description,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        has_display=True,  # not known: the larger reserve is the safe one
        is_integrated=device.is_integrated,
        kind=device.kind or "vulkan",
        pci=device.pci,
    )


def _need(gpu: Gpu) -> str:
    return {"cuda": "CUDA", "metal": "Metal"}.get(gpu.kind, "Vulkan or ROCm")
