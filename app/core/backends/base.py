"""What a backend is to the supervisor: it says how a model's worker is started, and nothing else.

A backend prepares a `LaunchPlan`; the guard starts it; the engine inside speaks the OpenAI protocol on
a loopback port of its own and prints one ready line. Pure but for what `prepare` reads from disk.
"""

from dataclasses import dataclass, field
from typing import Protocol

from app.core.hardware.engine_devices import EngineDevice
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.core.models.spec import ModelSpec
from app.guard.protocol import Caps


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do; the router acts on what it cannot.

    Attributes:
        parallel: answers several requests at once.
        counts_tokens: has /tokenize and /apply-template.
        reports_slots: says which slots are idle (/slots).
        wires: paths it answers itself.
    """

    parallel: bool = True
    counts_tokens: bool = True
    reports_slots: bool = True
    tools: bool = True
    json_schema: bool = True
    images: bool = False
    embeddings: bool = False
    wires: frozenset[str] = frozenset({"/v1/chat/completions", "/v1/completions"})


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """A program that can run models here. `devices` as the engine itself names them.

    `folder` is where its Python packages lie, if not in the environment that we run in;
    `is_parallel` is False where it answers one request at a time, so that one slot is planned.
    """

    name: str
    version: str
    path: str = ""
    devices: tuple[str, ...] = ()
    usable: bool = True
    reason: str = ""
    folder: str = ""
    is_parallel: bool = True


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything a worker is started with.

    Attributes:
        argv: the program; no secret is in it.
        env: additions to a bare environment; the key travels on stdin, never here.
        stdin: bytes written to the worker before it is asked for a ready line: one JSON line with
            the engine's parameters and the random key.
        key: what the router sends as bearer token.
        caps: what the guard and the kernel hold it to.
        plan: the memory plan that the caps were made from.
    """

    model_id: str
    argv: tuple[str, ...]
    env: dict[str, str]
    stdin: bytes
    key: str
    caps: Caps
    plan: MemoryPlan
    settings: LoadSettings
    engine: EngineInfo
    capabilities: Capabilities = field(default_factory=Capabilities)


class Backend(Protocol):
    """Adapter to one family of engines."""

    name: str

    def engines(self) -> tuple[EngineInfo, ...]:
        """What is installed; blocking (may start programs), so call it in an executor."""
        ...

    def can_run(self, spec: ModelSpec) -> bool: ...

    def engine_for(self, spec: ModelSpec) -> EngineInfo:
        """The engine that `prepare` would start; blocking at first, then remembered.

        Raises:
            EngineMissing: when no installed engine can run it.
        """
        ...

    def devices(self, engine: EngineInfo) -> tuple[EngineDevice, ...] | None:
        """The GPUs as that engine names them; None where they are those of the default engine."""
        ...

    def prepare(self, spec: ModelSpec, settings: LoadSettings, plan: MemoryPlan) -> LaunchPlan:
        """How to start `spec`.

        Raises:
            EngineMissing: when no installed engine can run it.
            ModelFileMissing: when its file is gone.
        """
        ...
