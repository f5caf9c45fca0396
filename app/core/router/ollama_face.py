"""Answers Ollama's questions about models: which there are, what they can do, which are loaded.

Asked by the endpoint before the dispatcher. Core loop only.
"""

import msgspec

from app.core.errors import ModelUnknown, RequestInvalid
from app.core.lifecycle import WorkerState
from app.core.models.spec import ModelSpec
from app.core.router.admissions import Workers
from app.core.router.http_types import Exchange
from app.core.router.names import Names
from app.core.router.ollama import plain_name
from app.core.router.ollama_pages import OllamaModel, running, show, tags, version
from app.core.router.wire_errors import encode

_METHODS = {
    "/api/version": frozenset({"GET", "HEAD"}),
    "/api/tags": frozenset({"GET", "HEAD"}),
    "/api/ps": frozenset({"GET", "HEAD"}),
    "/api/show": frozenset({"POST"}),
}


class OllamaFace:
    """Thread: core loop only."""

    def __init__(self, names: Names, workers: Workers) -> None:
        self._names = names
        self._workers = workers

    async def handle(self, exchange: Exchange) -> bool:
        """Answers, where the path is one of these; whether it was.

        Raises:
            RequestInvalid: for a wrong method or body.
            ModelUnknown: for a model that is not there.
        """
        request = exchange.request
        methods = _METHODS.get(request.path)
        if methods is None:
            return False
        if request.method not in methods:
            wanted = "POST" if "POST" in methods else "GET"
            raise RequestInvalid(f"{request.path} takes {wanted}.", status=405)
        if request.path == "/api/version":
            told = version()
        else:
            models = [self._model(spec) for spec in await self._names.specs()]
            if request.path == "/api/tags":
                told = tags(models)
            elif request.path == "/api/ps":
                told = running([model for model in models if self._is_ready(model.model_id)])
            else:
                told = show(_named(models, request.body))
        exchange.send(200, encode(told))
        return True

    def _is_ready(self, model_id: str) -> bool:
        view = self._workers.worker(model_id)
        return view is not None and view.state is WorkerState.READY

    def _model(self, spec: ModelSpec) -> OllamaModel:
        view = self._workers.worker(spec.model_id)
        is_ready = view is not None and view.state is WorkerState.READY
        return OllamaModel(
            spec.model_id,
            spec.size_bytes,
            view.context_tokens if view is not None and is_ready else spec.trained_context_tokens,
            architecture=spec.architecture,
            parameters=spec.parameters,
            quantization=spec.quantization,
            can_use_tools=spec.has_chat_template,
        )


def _named(models: list[OllamaModel], body: bytes) -> OllamaModel:
    try:
        asked = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestInvalid(f"The body is not JSON: {error}.") from error
    name = (asked.get("model") or asked.get("name")) if isinstance(asked, dict) else None
    if not isinstance(name, str):
        raise RequestInvalid("The field model must be text.", param="model")
    wanted = plain_name(name).lower()
    for model in models:
        if model.model_id.lower() == wanted:
            return model
    ids = [model.model_id for model in models]
    raise ModelUnknown(f"There is no model {name!r}. Installed: {', '.join(ids)}.", models=ids)
