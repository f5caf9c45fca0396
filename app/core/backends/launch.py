"""Puts together what a worker is started with; called by the backends before each load. Pure."""

import secrets

from app.core.backends.base import Capabilities, EngineInfo, LaunchPlan
from app.core.backends.caps import caps_for
from app.core.backends.engine import Program
from app.core.backends.engines.link import StartLine
from app.core.models.load_settings import LoadSettings
from app.core.models.plan import MemoryPlan
from app.core.models.spec import ModelSpec

KEY_BYTES = 24


def launch_plan(
    spec: ModelSpec,
    settings: LoadSettings,
    plan: MemoryPlan,
    engine: EngineInfo,
    capabilities: Capabilities,
    program: Program,
) -> LaunchPlan:
    """`program` with a key of its own, in its start line, and the caps that follow from the plan."""
    key = secrets.token_urlsafe(KEY_BYTES)
    start = StartLine(spec.model_id, str(spec.path), key, settings, program.options)
    return LaunchPlan(
        model_id=spec.model_id,
        argv=program.argv,
        env=program.env,
        stdin=start.encode(),
        key=key,
        caps=caps_for(plan, settings),
        plan=plan,
        settings=settings,
        engine=engine,
        capabilities=capabilities,
    )
