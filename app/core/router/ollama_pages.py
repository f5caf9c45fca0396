"""What Ollama's clients ask about models: /api/version, /api/tags, /api/show, /api/ps. Pure.

Each function makes the answer's object from plain facts; the pages know where those are.
"""

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from app.core.router.ollama import VERSION, tagged


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """What is told of a model.

    Attributes:
        model_id: as the endpoint calls it.
        size_bytes: of its files.
        context_tokens: what one conversation can hold now; the trained length while it is not loaded.
        parameters: number of weights.
        can_use_tools: whether its chat template takes tools.
        can_see: whether it takes images.
        can_embed: whether it makes embeddings.
        changed_at_s: wall time of its file's last change.
    """

    model_id: str
    size_bytes: int
    context_tokens: int
    architecture: str = ""
    parameters: int = 0
    quantization: str = ""
    can_use_tools: bool = True
    can_see: bool = False
    can_embed: bool = False
    changed_at_s: float = 0.0


def version() -> dict[str, Any]:
    return {"version": VERSION}


def tags(models: Iterable[OllamaModel]) -> dict[str, Any]:
    """The answer of /api/tags."""
    return {"models": [_entry(model) for model in models]}


def running(models: Iterable[OllamaModel]) -> dict[str, Any]:
    """The answer of /api/ps: what is loaded."""
    return {
        "models": [
            {**_entry(model), "size_vram": 0, "context_length": model.context_tokens}
            for model in models
        ]
    }


def show(model: OllamaModel) -> dict[str, Any]:
    """The answer of /api/show: editors read the capabilities and the context length from it."""
    architecture = model.architecture or "llama"
    capabilities = ["completion"]
    for has, name in (
        (model.can_use_tools, "tools"),
        (model.can_see, "vision"),
        (model.can_embed, "embedding"),
    ):
        if has:
            capabilities.append(name)
    return {
        "modelfile": f"FROM {model.model_id}",
        "parameters": f"num_ctx                        {model.context_tokens}",
        "template": "",
        "details": _details(model),
        "model_info": {
            "general.architecture": architecture,
            "general.basename": model.model_id,
            "general.parameter_count": model.parameters,
            f"{architecture}.context_length": model.context_tokens,
        },
        "capabilities": capabilities,
        "modified_at": _stamp(model.changed_at_s),
    }


def _entry(model: OllamaModel) -> dict[str, Any]:
    name = tagged(model.model_id)
    return {
        "name": name,
        "model": name,
        "modified_at": _stamp(model.changed_at_s),
        "size": model.size_bytes,
        "digest": hashlib.sha256(f"{name} {model.size_bytes}".encode()).hexdigest(),
        "details": _details(model),
    }


def _details(model: OllamaModel) -> dict[str, Any]:
    family = model.architecture or "llama"
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": _size(model.parameters),
        "quantization_level": model.quantization,
    }


def _size(parameters: int) -> str:
    if parameters >= 1_000_000_000:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.0f}M"


def _stamp(at_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s))
