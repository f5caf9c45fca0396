"""What the supervisor keeps of one model, whether it has a worker just now or not."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.backends.recovery import Recovery
from app.core.backends.worker import ReadyWorker, Worker
from app.core.lifecycle import ExitCause, WorkerState


@dataclass(slots=True)
class Entry:
    """Thread: core loop; written by the supervisor, its loader and its roster."""

    model_id: str
    worker: Worker | None = None
    load: "asyncio.Task[ReadyWorker] | None" = None
    generation: int = 0
    recovery: Recovery = field(default_factory=Recovery)
    waiting: int = 0  # requests that will go to the worker, the next one included
    stopped: ExitCause | None = None  # an unload came while the load had no worker yet
    taken: Mapping[str, int] = field(default_factory=dict)
    state: WorkerState = WorkerState.UNLOADED  # while there is no worker
    reason: str = ""
