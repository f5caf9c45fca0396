"""The planner of the real app: presets, the formula, the engine's dry run, and the rule that refuses.

Made by the composition; the supervisor calls it in an executor.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from app.core.backends.planner import EngineUse, Live, Priced
from app.core.backends.recovery import smaller
from app.core.hardware.engine_devices import EngineDevice
from app.core.hardware.machine import Machine
from app.core.models.fit import judge, propose
from app.core.models.learning import Learning
from app.core.models.limits import beside, limits_from
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan, plan_memory
from app.core.models.plan_kv import kv_type_problem
from app.core.models.presets import choose
from app.core.models.spec import ModelSpec
from app.core.settings import Settings

_log = logging.getLogger(__name__)

XLLAMACPP = "xllamacpp"

Probe: TypeAlias = Callable[[tuple[EngineDevice, ...] | None], Machine]


class DryRun(Protocol):
    """`models.dry_run.dry_run_or_formula`: the formula's figures with a note where it fails."""

    def __call__(
        self,
        spec: ModelSpec,
        settings: LoadSettings,
        gpus: Sequence[str] = (),
        *,
        python_folders: Sequence[str] = (),
    ) -> MemoryPlan: ...


class ModelPlanner:
    """Thread: any; holds no state of its own.

    Args:
        probe: reads the machine, with the GPUs of an engine.
        dry_run: the engine's own figures; None decides by the formula alone.
        learning: what loads took before.
    """

    def __init__(
        self, probe: Probe, dry_run: DryRun | None = None, learning: Learning | None = None
    ) -> None:
        self._probe = probe
        self._dry_run = dry_run
        self._learning = learning

    def machine(self) -> Machine:
        return self._probe(None)

    def price(
        self, spec: ModelSpec, settings: Settings, live: Live, engine: EngineUse, steps: int
    ) -> Priced:
        machine = self._probe(engine.devices)
        limits = limits_from(settings, machine)
        # "Available" counts the weights that running workers map as free; a preset must not.
        left = dataclasses.replace(
            machine, ram_available_bytes=machine.ram_available_bytes - live.mapped_bytes
        )
        choice = choose(spec, left, settings)
        asked = choice.load
        if not engine.info.is_parallel and asked.slots > 1:
            asked = dataclasses.replace(asked, slots=1)
        load = smaller(asked, steps)
        if spec.shape is not None and kv_type_problem(spec.shape, load):
            load = dataclasses.replace(load, kv_type_k=asked.kv_type_k, kv_type_v=asked.kv_type_v)
        formula = self._plan(spec, load, choice.gpus, engine)
        plan = formula
        if self._learning is not None:
            plan = self._learning.correct(formula, spec, load, engine.name)
        fit = judge(plan, machine, limits, live.mapped_bytes, live.own_bytes, live.gpu_bytes)
        way_out = ""
        if not fit.fits:
            rest = beside(limits, live.own_bytes + live.mapped_bytes, live.gpu_bytes)
            proposal = propose(spec, load, left, rest, choice.gpus)
            way_out = proposal.sentence if proposal else ""
        reasons = choice.reasons
        if asked != choice.load:
            reasons = (*reasons, f"one slot: {engine.info.name} answers one request at a time")
        if load != asked:
            reasons = (*reasons, f"{steps} step(s) smaller after a kill for memory")
        return Priced(load, plan, fit, machine, formula, reasons, way_out, choice.warnings)

    def record(
        self, spec: ModelSpec, priced: Priced, taken_bytes: Mapping[str, int], engine: EngineUse
    ) -> None:
        if self._learning is None:
            return
        plan = priced.formula or priced.plan
        drift = self._learning.record(spec, priced.load, engine.name, plan, taken_bytes)
        if drift:
            _log.info("%s", drift)

    def _plan(
        self, spec: ModelSpec, load: LoadSettings, gpus: Sequence[str], engine: EngineUse
    ) -> MemoryPlan:
        is_asked = engine.info.name == XLLAMACPP
        # The dry run is xllamacpp's own; of another engine's GPUs it knows nothing.
        can_ask = is_asked or not gpus
        if self._dry_run is None or spec.format != "gguf" or not can_ask:
            return plan_memory(spec, load, gpus)
        folders = (engine.info.folder,) if is_asked and engine.info.folder else ()
        plan = self._dry_run(spec, load, gpus, python_folders=folders)
        if plan.source == "formula":
            _log.warning("no dry run of %s: %s", spec.model_id, plan.note)
        return plan
