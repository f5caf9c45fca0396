"""The backend for MLX models: mlx-lm's server inside our worker program.

The engine of Apple silicon; on Linux it runs with `mlx[cpu]`, slowly, for tests. Made by the
composition; the supervisor asks it how a model is started.
"""

import importlib.metadata
import importlib.util
import platform
from pathlib import Path

from app.core.backends import builds
from app.core.backends.base import Capabilities, EngineInfo, LaunchPlan
from app.core.backends.engine import Program
from app.core.backends.launch import launch_plan
from app.core.backends.own_program import own_argv, worker_env
from app.core.errors import EngineMissing, ModelFileMissing
from app.core.hardware.engine_devices import EngineDevice
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.core.models.spec import ModelSpec

MIB = 1024 * 1024
CACHE_SHARE = 0.1
LEAST_CACHE_BYTES = 64 * MIB
"""MLX keeps freed buffers to use them again; without a limit it keeps all of them."""

CAPABILITIES = Capabilities(
    parallel=True,
    counts_tokens=False,
    reports_slots=True,
    tools=True,
    json_schema=False,
    images=False,
    embeddings=False,
)


class MlxBackend:
    """Thread: any; stateless.

    Args:
        folder: where mlx and mlx-lm are, if not where this program's own libraries are.
        engines_folder: where a fetched build would lie, looked at each time.
    """

    name = "mlx"

    def __init__(self, folder: Path | None = None, engines_folder: Path | None = None) -> None:
        self._given = folder
        self._engines_folder = engines_folder

    def engines(self) -> tuple[EngineInfo, ...]:
        return (self._find(),)

    def can_run(self, spec: ModelSpec) -> bool:
        return spec.format == "mlx"

    def engine_for(self, spec: ModelSpec) -> EngineInfo:
        info = self._find()
        if not info.usable:
            raise EngineMissing(
                f"{spec.model_id} is an MLX model, and {info.reason}.", model=spec.model_id
            )
        return info

    def devices(self, engine: EngineInfo) -> tuple[EngineDevice, ...] | None:
        del engine
        return None

    def prepare(self, spec: ModelSpec, settings: LoadSettings, plan: MemoryPlan) -> LaunchPlan:
        info = self.engine_for(spec)
        if not spec.path.is_dir():
            raise ModelFileMissing(f"{spec.path} is gone.", path=str(spec.path))
        planned_bytes = sum(part.total_bytes for part in plan.devices)
        options = {
            "memory_limit_bytes": str(planned_bytes),
            "cache_limit_bytes": str(max(LEAST_CACHE_BYTES, int(planned_bytes * CACHE_SHARE))),
            "kv_bytes": str(sum(part.kv_bytes for part in plan.devices)),
        }
        folders = (info.folder,) if info.folder else ()
        env = worker_env(folders) | {"OMP_NUM_THREADS": str(settings.threads)}
        program = Program(own_argv("worker", "mlx"), env, options)
        return launch_plan(spec, settings, plan, info, CAPABILITIES, program)

    def _folder(self) -> Path | None:
        if self._given is not None or self._engines_folder is None:
            return self._given
        found = builds.installed(self._engines_folder)
        return next((build.folder for build in found if build.engine == "mlx"), None)

    def _find(self) -> EngineInfo:
        folder = self._folder()
        if folder is not None:
            for found in importlib.metadata.distributions(name="mlx-lm", path=[str(folder)]):
                return EngineInfo("mlx", found.version, str(folder), folder=str(folder))
            return EngineInfo("mlx", "", usable=False, reason=f"{folder} has no mlx-lm")
        if importlib.util.find_spec("mlx_lm") is None or importlib.util.find_spec("mlx") is None:
            hint = "mlx-lm" if platform.system() == "Darwin" else "mlx-lm and mlx[cpu]"
            return EngineInfo(
                "mlx",
                "",
                usable=False,
                reason=f"mlx is not installed (coolhead engine install mlx, or pip install {hint})",
            )
        return EngineInfo("mlx", importlib.metadata.version("mlx-lm"))
