"""The backend for GGUF files: xllamacpp, llama.cpp's own server inside our worker program.

Made by the composition; the supervisor asks it how a model is started. Other engines of the family
(`llama-server`, llama-cpp-python) are added in files of their own.
"""

import importlib.metadata
import importlib.util
import os
import re
import secrets
from collections.abc import Iterable, Mapping

from app.core.backends.base import Capabilities, EngineInfo, LaunchPlan
from app.core.backends.caps import caps_for
from app.core.backends.engines.link import StartLine
from app.core.backends.own_program import own_argv, worker_env
from app.core.errors import EngineMissing, ModelFileMissing
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.core.models.spec import ModelSpec

KEY_BYTES = 24
XLLAMACPP = Capabilities(
    wires=frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
)
_VISIBLE = {
    "CUDA": "CUDA_VISIBLE_DEVICES",
    "ROCm": "HIP_VISIBLE_DEVICES",
    "Vulkan": "GGML_VK_VISIBLE_DEVICES",
}


class LlamaCppBackend:
    """Thread: any; holds no state but what it has found out about the engine."""

    name = "llama_cpp"

    def engines(self) -> tuple[EngineInfo, ...]:
        return (xllamacpp_info(),)

    def can_run(self, spec: ModelSpec) -> bool:
        return spec.format == "gguf"

    def prepare(self, spec: ModelSpec, settings: LoadSettings, plan: MemoryPlan) -> LaunchPlan:
        engine = xllamacpp_info()
        if not engine.usable:
            raise EngineMissing(f"{engine.name} cannot be used: {engine.reason}")
        if not spec.path.exists():
            raise ModelFileMissing(f"{spec.path} is gone.", path=str(spec.path))
        key = secrets.token_urlsafe(KEY_BYTES)
        start = StartLine(spec.model_id, str(spec.path), key, settings)
        devices = [device.device for device in plan.devices if device.device != "RAM"]
        env = worker_env()
        env |= visible_devices(devices if settings.gpu_layers else (), os.environ)
        return LaunchPlan(
            model_id=spec.model_id,
            argv=own_argv("worker", "xllamacpp"),
            env=env,
            stdin=start.encode(),
            key=key,
            caps=caps_for(plan, settings),
            plan=plan,
            settings=settings,
            engine=engine,
            capabilities=XLLAMACPP,
        )


def xllamacpp_info() -> EngineInfo:
    """Whether xllamacpp is installed, and which; does not import it."""
    if importlib.util.find_spec("xllamacpp") is None:
        return EngineInfo("xllamacpp", "", usable=False, reason="it is not installed")
    found = importlib.util.find_spec("xllamacpp")
    origin = found.origin if found and found.origin else ""
    return EngineInfo("xllamacpp", importlib.metadata.version("xllamacpp"), origin)


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
        names = [shown[n] if n < len(shown) else str(n) for n in numbers]
        found[name] = ",".join(names)
    return found
