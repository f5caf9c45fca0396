"""What is answered without a model: the list of models, health, metrics.

Asked by the endpoint before the dispatcher. Core loop only.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from app.core.errors import AdmissionClosed, ModelUnknown, RequestInvalid
from app.core.lifecycle import WorkerState
from app.core.models.spec import ModelSpec
from app.core.router.admissions import Workers
from app.core.router.gate import Gate
from app.core.router.http_types import Exchange
from app.core.router.metrics import CONTENT_TYPE, Metrics
from app.core.router.names import Names
from app.core.router.wire import plain_path

_LOADED = frozenset({WorkerState.READY, WorkerState.DRAINING})


class Pages:
    """Thread: core loop only."""

    def __init__(
        self,
        names: Names,
        workers: Workers,
        gate: Gate,
        metrics: Metrics,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._names = names
        self._workers = workers
        self._gate = gate
        self._metrics = metrics
        self._now = now

    async def handle(self, exchange: Exchange) -> bool:
        """Answers, where the path is one of these; whether it was.

        Raises:
            RequestInvalid: for another method than GET.
            ModelUnknown: for a model that is not there.
            AdmissionClosed: from /health while paused or stopping.
        """
        path = plain_path(exchange.request.path)
        if path in {"/health", "/v1/health", "/"}:
            self._need_get(exchange, path)
            admission = self._gate.admission()
            if not admission.takes_new:
                raise AdmissionClosed(admission.sentence, retry_after_s=admission.retry_after_s)
            exchange.send(200, b'{"status":"ok"}')
        elif path == "/metrics":
            self._need_get(exchange, path)
            exchange.send(200, self._metrics.render(), ((b"content-type", CONTENT_TYPE),))
        elif path in {"/v1/models", "/models"}:
            self._need_get(exchange, path)
            entries = [self._entry(spec) for spec in await self._names.specs()]
            ids = [str(entry["id"]) for entry in entries]
            told = {
                "object": "list",
                "data": entries,
                "has_more": False,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
            exchange.send(200, msgspec.json.encode(told))
        elif path.startswith("/v1/models/"):
            self._need_get(exchange, path)
            exchange.send(200, msgspec.json.encode(await self._one(path[len("/v1/models/") :])))
        else:
            return False
        return True

    @staticmethod
    def _need_get(exchange: Exchange, path: str) -> None:
        if exchange.request.method not in {"GET", "HEAD"}:
            method = exchange.request.method
            raise RequestInvalid(f"{path} takes GET, not {method}.", status=405)

    async def _one(self, name: str) -> dict[str, object]:
        wanted = name.lower().removesuffix(".gguf")
        specs = await self._names.specs()
        for spec in specs:
            if spec.model_id == wanted:
                return self._entry(spec)
        names = [spec.model_id for spec in specs]
        raise ModelUnknown(
            f"There is no model {name!r}. Installed: {', '.join(names)}.", models=names
        )

    def _entry(self, spec: ModelSpec) -> dict[str, object]:
        view = self._workers.worker(spec.model_id)
        is_loaded = view is not None and view.state in _LOADED
        created_s = int(self._now())
        entry: dict[str, object] = {
            "id": spec.model_id,
            "object": "model",
            "type": "model",
            "created": created_s,
            "created_at": datetime.fromtimestamp(created_s, UTC).isoformat(),
            "display_name": spec.name or spec.model_id,
            "owned_by": "coolhead",
            "is_loaded": is_loaded,
            "trained_context_length": spec.trained_context_tokens,
            "size_bytes": spec.size_bytes,
            "architecture": spec.architecture,
            "quantization": spec.quantization,
        }
        if view is not None and is_loaded:
            # What one conversation can really hold, not what the model was trained for.
            entry["context_length"] = entry["max_model_len"] = view.context_tokens
            entry["slots"] = view.slots
        return entry
