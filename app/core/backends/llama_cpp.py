"""The backend for GGUF files: llama.cpp, by whichever of its engines is installed and suits.

Made by the composition; the supervisor asks it how a model is started.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from app.core.backends import builds
from app.core.backends.base import EngineInfo, LaunchPlan
from app.core.backends.choose import choose_engine
from app.core.backends.engine import Engine
from app.core.backends.engine_llama_cpp_python import LlamaCppPython
from app.core.backends.engine_llama_server import LlamaServer
from app.core.backends.engine_xllamacpp import Xllamacpp
from app.core.backends.launch import launch_plan
from app.core.errors import EngineMissing, ModelFileMissing
from app.core.hardware.engine_devices import EngineDevice
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.core.models.spec import ModelSpec
from app.core.settings import Settings


class LlamaCppBackend:
    """Thread: any; holds no state.

    Args:
        settings: the current settings.
        engines: those to choose among, in order of preference where they are alike; none for all.
        engines_folder: where fetched builds lie, looked at each time.
    """

    name = "llama_cpp"

    def __init__(
        self,
        settings: Callable[[], Settings] = Settings,
        engines: Sequence[Engine] = (),
        engines_folder: Path | None = None,
    ) -> None:
        self._settings = settings
        self._given = tuple(engines)
        self._folder = engines_folder

    def engines(self) -> tuple[EngineInfo, ...]:
        return tuple(engine.find() for engine in self._engines())

    def can_run(self, spec: ModelSpec) -> bool:
        return spec.format == "gguf"

    def engine_for(self, spec: ModelSpec) -> EngineInfo:
        wanted = self._settings().engine.engine
        engines = self._engines()
        infos = tuple(engine.find(with_devices=False) for engine in engines)
        if sum(info.usable and wanted in {"auto", "mlx", info.name} for info in infos) > 1:
            infos = tuple(engine.find() for engine in engines)  # their devices decide
        choice = choose_engine(infos, wanted)
        if choice.engine is None:
            raise EngineMissing(
                f"No engine here runs {spec.model_id}: {choice.reason}", model=spec.model_id
            )
        return choice.engine

    def devices(self, engine: EngineInfo) -> tuple[EngineDevice, ...] | None:
        return self._engine_of(engine).devices()

    def _engines(self) -> tuple[Engine, ...]:
        if self._given:
            return self._given
        found = builds.installed(self._folder) if self._folder else ()
        fetched = [Xllamacpp(build) for build in found if build.engine == Xllamacpp.name]
        made = [LlamaCppPython(build) for build in found if build.engine == LlamaCppPython.name]
        return (
            Xllamacpp(),
            *fetched,
            LlamaServer(self._settings),
            *(made or [LlamaCppPython()]),
        )

    def _engine_of(self, info: EngineInfo) -> Engine:
        for engine in self._engines():
            if engine.name == info.name and engine.find(with_devices=False).folder == info.folder:
                return engine
        raise EngineMissing(f"{info.name} in {info.folder or info.path} is gone.")

    def prepare(self, spec: ModelSpec, settings: LoadSettings, plan: MemoryPlan) -> LaunchPlan:
        info = self.engine_for(spec)
        engine = self._engine_of(info)
        if not spec.path.exists():
            raise ModelFileMissing(f"{spec.path} is gone.", path=str(spec.path))
        program = engine.program(settings, plan)
        return launch_plan(spec, settings, plan, info, engine.capabilities, program)
