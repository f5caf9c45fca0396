"""xllamacpp: llama.cpp's native server inside our own worker program. The default engine."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache

from app.core.backends.base import Capabilities, EngineInfo
from app.core.backends.builds import InstalledBuild
from app.core.backends.engine import PROBE_S, Program, device_text, gpus_of
from app.core.backends.own_program import own_argv, worker_env
from app.core.hardware.engine_devices import EngineDevice, engine_devices
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan

_log = logging.getLogger(__name__)

LLAMA_CPP_WIRES = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
_VISIBLE = {
    "CUDA": "CUDA_VISIBLE_DEVICES",
    "ROCm": "HIP_VISIBLE_DEVICES",
    "Vulkan": "GGML_VK_VISIBLE_DEVICES",
}


class Xllamacpp:
    """Thread: any.

    Args:
        build: one that was fetched into a folder of its own; None for the one installed beside us.
    """

    name = "xllamacpp"
    capabilities = Capabilities(wires=LLAMA_CPP_WIRES)

    def __init__(self, build: InstalledBuild | None = None) -> None:
        self._build = build

    def find(self, *, with_devices: bool = True) -> EngineInfo:
        shown = (self._devices() if with_devices else None) or ()
        devices = tuple(device_text(device) for device in shown)
        if self._build is not None:
            folder = str(self._build.folder)
            return EngineInfo(self.name, self._build.version, folder, devices, folder=folder)
        found = importlib.util.find_spec("xllamacpp")
        if found is None:
            return EngineInfo(self.name, "", usable=False, reason="it is not installed")
        version = importlib.metadata.version("xllamacpp")
        return EngineInfo(self.name, version, found.origin or "", devices)

    def devices(self) -> tuple[EngineDevice, ...] | None:
        return None if self._build is None else self._devices()

    def program(self, load: LoadSettings, plan: MemoryPlan) -> Program:
        env = worker_env((str(self._build.folder),) if self._build else ())
        env |= visible_devices(gpus_of(plan) if load.gpu_layers else (), os.environ)
        return Program(own_argv("worker", self.name), env)

    def _devices(self) -> tuple[EngineDevice, ...]:
        if self._build is None:
            return engine_devices() or ()
        return _devices_in(str(self._build.folder), self._build.version)


@lru_cache(maxsize=8)
def _devices_in(folder: str, _version: str) -> tuple[EngineDevice, ...]:
    """The GPUs of a build in a folder, asked in a throw-away process."""
    code = "from app.core.hardware.engine_devices import main; main()"
    argv = own_argv("devices") if getattr(sys, "frozen", False) else own_argv()[:2]
    if not getattr(sys, "frozen", False):
        argv = (*argv, "-c", code)
    try:
        answer = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            check=True,
            env={**os.environ, **worker_env((folder,)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            stdin=subprocess.DEVNULL,
        )
        return tuple(EngineDevice(**row) for row in json.loads(answer.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError) as error:
        _log.warning("the devices of the build in %s could not be listed: %s", folder, error)
        return ()


def visible_devices(devices: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Environment that shows an engine these GPUs alone; with none, CUDA is not even started.

    A device's number counts within what the user's own environment shows already.
    """
    chosen: dict[str, list[int]] = {}
    for device in devices:
        match = re.fullmatch(r"([A-Za-z]+?)(\d+)", device)
        if match and match[1] in _VISIBLE:
            chosen.setdefault(match[1], []).append(int(match[2]))
    found = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if not chosen:
        return found | {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    for kind, numbers in chosen.items():
        name = _VISIBLE[kind]
        shown = [word for word in env.get(name, "").split(",") if word]
        found[name] = ",".join(shown[n] if n < len(shown) else str(n) for n in numbers)
    return found
