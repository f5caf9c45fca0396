"""xllamacpp: llama.cpp's native server inside our own worker program. The default engine."""

import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping

from app.core.backends.base import Capabilities, EngineInfo
from app.core.backends.engine import Program, device_text, gpus_of
from app.core.backends.own_program import own_argv, worker_env
from app.core.hardware.engine_devices import EngineDevice, engine_devices
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan

LLAMA_CPP_WIRES = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
_VISIBLE = {
    "CUDA": "CUDA_VISIBLE_DEVICES",
    "ROCm": "HIP_VISIBLE_DEVICES",
    "Vulkan": "GGML_VK_VISIBLE_DEVICES",
}


class Xllamacpp:
    """Thread: any; stateless."""

    name = "xllamacpp"
    capabilities = Capabilities(wires=LLAMA_CPP_WIRES)

    def find(self, *, with_devices: bool = True) -> EngineInfo:
        found = importlib.util.find_spec("xllamacpp")
        if found is None:
            return EngineInfo(self.name, "", usable=False, reason="it is not installed")
        devices = (engine_devices() if with_devices else None) or ()
        return EngineInfo(
            self.name,
            importlib.metadata.version("xllamacpp"),
            found.origin or "",
            tuple(device_text(device) for device in devices),
        )

    def devices(self) -> tuple[EngineDevice, ...] | None:
        return None

    def program(self, load: LoadSettings, plan: MemoryPlan) -> Program:
        env = worker_env()
        env |= visible_devices(gpus_of(plan) if load.gpu_layers else (), os.environ)
        return Program(own_argv("worker", self.name), env)


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
