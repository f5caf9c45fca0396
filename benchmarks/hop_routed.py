"""The whole endpoint with routing, admission and accounting before one stand-in worker: `PORT WORKER`.

Everything a request passes in the app is real; only the supervisor is not: its one model `m` is the
worker that runs already.
"""

import asyncio
import gc
import sys
from pathlib import Path
from typing import Any, cast

import uvloop

from app.core.backends.base import Capabilities
from app.core.backends.view import Lease, WorkerView
from app.core.backends.worker import ReadyWorker, Worker
from app.core.events import EventBus
from app.core.handle import Command, Snapshot
from app.core.lifecycle import ExitCause, WorkerState
from app.core.models.spec import ModelSpec
from app.core.router.endpoint import Endpoint
from app.core.router.router import Router
from app.core.router.rules import RoutingRules
from app.core.settings import Settings
from app.guard.protocol import Exited

MODEL = "m"
SLOTS = 64
SETTINGS = Settings()


class OneWorker:
    """A supervisor whose only worker is ready."""

    def __init__(self, port: int) -> None:
        self.ready = ReadyWorker(
            MODEL,
            "worker",
            "127.0.0.1",
            port,
            "key",
            32768,
            SLOTS,
            Capabilities(reports_slots=False, counts_tokens=False),
            1,
        )
        self.worker_object = cast("Worker", self.ready)

    async def ensure_ready(self, model_id: str) -> ReadyWorker:
        assert model_id == MODEL
        return self.ready

    async def unload(self, model_id: str, cause: ExitCause, note: str = "") -> None:
        """It stays."""

    def worker(self, model_id: str) -> WorkerView | None:
        return WorkerView(model_id, WorkerState.READY, "worker", context_tokens=32768, slots=SLOTS)

    def note_waiting(self, model_id: str, count: int) -> None:
        """There is no guard to be told."""

    def worker_exit(self, worker_id: str) -> "asyncio.Future[Exited]":
        assert worker_id
        return asyncio.get_running_loop().create_future()

    def lease(self, model_id: str) -> Lease:
        assert model_id == MODEL
        return Lease(self.worker_object, lambda _worker: None)


class OneModel:
    """A library with one model."""

    def specs(self) -> tuple[ModelSpec, ...]:
        return (self.find(MODEL),)

    def find(self, model_id: str) -> ModelSpec:
        given: dict[str, Any] = dict.fromkeys(ModelSpec.__dataclass_fields__, "")
        return ModelSpec(**(given | {"model_id": model_id, "path": Path(), "size_bytes": 1}))


async def nothing(_command: Command) -> object:
    return None


def make(worker_port: int) -> Endpoint:
    return Endpoint(
        workers=OneWorker(worker_port),
        library=OneModel(),
        router=Router(RoutingRules()),
        events=EventBus(),
        settings=lambda: SETTINGS,
        snapshot=Snapshot,
        execute=nothing,
        admin_token="token",
    )


async def main() -> None:
    endpoint = make(int(sys.argv[2]))
    await endpoint.open(int(sys.argv[1]))
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
