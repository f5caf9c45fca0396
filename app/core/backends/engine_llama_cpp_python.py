"""llama-cpp-python: llama.cpp compiled on the user's machine, with the flags that they chose.

One request at a time: it has no batching across requests, so it is taken only where the user says so
or nothing else is there. Worth having for a CPU or GPU that no ready-made build was made for.
"""

import importlib.metadata
import importlib.util
import os

from app.core.backends.base import Capabilities, EngineInfo
from app.core.backends.builds import InstalledBuild
from app.core.backends.engine import Program, gpus_of
from app.core.backends.engine_xllamacpp import visible_devices
from app.core.backends.own_program import own_argv, worker_env
from app.core.hardware.engine_devices import EngineDevice
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan


class LlamaCppPython:
    """Thread: any.

    Args:
        build: one that was made in a folder of its own; None for the one installed beside us.
    """

    name = "llama-cpp-python"
    capabilities = Capabilities(
        parallel=False,
        counts_tokens=False,
        reports_slots=False,
        tools=False,
        json_schema=True,
    )

    def __init__(self, build: InstalledBuild | None = None) -> None:
        self._build = build

    def find(self, *, with_devices: bool = True) -> EngineInfo:
        del with_devices  # it does not list any; the hardware room's list is taken
        if self._build is not None:
            folder = str(self._build.folder)
            return EngineInfo(
                self.name, self._build.version, folder, folder=folder, is_parallel=False
            )
        missing = [
            name
            for name in ("llama_cpp", "uvicorn", "fastapi", "pydantic_settings")
            if importlib.util.find_spec(name) is None
        ]
        if missing:
            reason = f"{', '.join(missing)} is not installed (coolhead engine install {self.name})"
            return EngineInfo(self.name, "", usable=False, reason=reason, is_parallel=False)
        version = importlib.metadata.version("llama-cpp-python")
        return EngineInfo(self.name, version, is_parallel=False)

    def devices(self) -> tuple[EngineDevice, ...] | None:
        return None

    def program(self, load: LoadSettings, plan: MemoryPlan) -> Program:
        env = worker_env((str(self._build.folder),) if self._build else ())
        env |= visible_devices(gpus_of(plan) if load.gpu_layers else (), os.environ)
        return Program(own_argv("worker", self.name), env)
