"""The planner as long as caution is called for: refuses loads nobody asked for, and prices smaller ones.

Stands between the supervisor and the real planner, so that every way to load a model passes it.
"""

from collections.abc import Mapping

from app.core.backends.caution import Caution
from app.core.backends.planner import EngineUse, Live, Planner, Priced
from app.core.hardware.machine import Machine
from app.core.models.spec import ModelSpec
from app.core.settings import Settings


class CarefulPlanner:
    """Thread: any."""

    def __init__(self, planner: Planner, caution: Caution) -> None:
        self._planner = planner
        self._caution = caution

    def machine(self) -> Machine:
        return self._planner.machine()

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        """The price of a load. Raises: AdmissionClosed, where the user has to decide first."""
        self._caution.check(spec.model_id, self._planner.machine)
        priced = self._planner.price(spec, self._caution.reduce(settings), live, engine, steps)
        # MLX has GPUs of its own kind, and who wants the processor misses no GPU.
        if spec.format == "gguf" and settings.model.placement != "cpu_only":
            self._caution.look_at_gpus(spec.model_id, priced.machine)
        return priced

    def record(
        self, spec: ModelSpec, priced: Priced, taken_bytes: Mapping[str, int], engine: EngineUse
    ) -> None:
        self._planner.record(spec, priced, taken_bytes, engine)
