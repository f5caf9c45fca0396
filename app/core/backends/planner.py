"""What the supervisor asks before and after a load: what it would take, whether it fits, what it took.

Blocking (it reads files, may start the engine's dry run), so the supervisor calls it in an executor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.core.backends.base import EngineInfo
from app.core.hardware.engine_devices import EngineDevice
from app.core.hardware.machine import Machine
from app.core.models.fit import Fit
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.core.models.spec import ModelSpec
from app.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Live:
    """What running workers hold, all together, in bytes; `gpu_bytes` per device."""

    mapped_bytes: int = 0
    own_bytes: int = 0
    gpu_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineUse:
    """The engine a load is meant for, and its GPUs; None for those of the default engine."""

    info: EngineInfo
    devices: tuple[EngineDevice, ...] | None = None

    @property
    def name(self) -> str:
        """With its version: another one takes other sums."""
        return f"{self.info.name} {self.info.version}"


@dataclass(frozen=True, slots=True)
class Priced:
    """A load, its price, and the verdict on it.

    Attributes:
        plan: what decides; `formula` what it was before earlier loads taught better.
        way_out: what would fit instead, in words; empty where it fits or nothing does.
        warnings: what the user should know, such as a slow processor.
    """

    load: LoadSettings
    plan: MemoryPlan
    fit: Fit
    machine: Machine
    formula: MemoryPlan | None = None
    reasons: tuple[str, ...] = ()
    way_out: str = ""
    warnings: tuple[str, ...] = ()


class Planner(Protocol):
    """Thread: any; every method may block."""

    def machine(self) -> Machine:
        """What the machine has at this moment."""
        ...

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        """The load that presets and settings ask for, `steps` steps smaller, with its price."""
        ...

    def record(
        self, spec: ModelSpec, priced: Priced, taken_bytes: Mapping[str, int], engine: EngineUse
    ) -> None:
        """Stores what a load really took, per device, beside what was planned."""
        ...


class Library(Protocol):
    """Thread: any."""

    def find(self, model_id: str) -> ModelSpec:
        """Raises: ModelUnknown, ModelFileMissing, ModelFileInvalid."""
        ...
