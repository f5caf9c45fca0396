"""Ollama's `options` and `format` as fields of ours. Pure; part of `ollama.py`."""

from collections.abc import Mapping
from typing import Any

from app.core.errors import RequestInvalid

_SAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "seed",
    "stop",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
)


def completion_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling fields, the length limit and the answer's format.

    `num_ctx` and other fields of a load are not the request's business here: a slot has the context
    that the settings gave it.

    Raises:
        RequestInvalid: when `options` is no object.
    """
    options = asked.get("options") or {}
    if not isinstance(options, dict):
        raise RequestInvalid("The field options must be an object.", param="options")
    sent = {name: options[name] for name in _SAME if name in options}
    limit = options.get("num_predict")
    if isinstance(limit, int) and limit > 0:
        sent["max_tokens"] = limit
    wanted = asked.get("format")
    if wanted == "json":
        sent["response_format"] = {"type": "json_object"}
    elif isinstance(wanted, dict):
        sent["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": wanted},
        }
    return sent
