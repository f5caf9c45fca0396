"""What one engine is to its backend: found or not, its devices, and the program to start.

An engine is one small file (`engine_<name>.py`) and, where it runs our code, one program in
`engines/`. Everything here may start throw-away programs and so may block; results are kept.
"""

from dataclasses import dataclass, field
from typing import Protocol

from app.core.backends.base import Capabilities, EngineInfo
from app.core.hardware.engine_devices import EngineDevice
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan

PROBE_S = 30
"""For a throw-away program that says what an engine is; a first start off a slow disk takes long."""


@dataclass(frozen=True, slots=True)
class Program:
    """What the guard starts; `options` go into the start line."""

    argv: tuple[str, ...]
    env: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """Thread: any."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def find(self, *, with_devices: bool = True) -> EngineInfo:
        """What is installed; `usable` is False, with the reason, where nothing is.

        Args:
            with_devices: listing them may take a second at first.
        """
        ...

    def devices(self) -> tuple[EngineDevice, ...] | None:
        """Its GPUs; None where they are those that the hardware room asks for by itself."""
        ...

    def program(self, load: LoadSettings, plan: MemoryPlan) -> Program: ...


def gpus_of(plan: MemoryPlan) -> list[str]:
    """The GPUs that a plan uses, as the engine names them."""
    return [part.device for part in plan.devices if part.device != "RAM" and part.total_bytes]


def device_text(device: EngineDevice) -> str:
    """A device for people and for `choose`: name first."""
    return f"{device.name} ({device.description})"
