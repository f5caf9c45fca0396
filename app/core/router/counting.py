"""Counts a prompt with the worker's own tokenizer, where an estimate comes near the context length.

Used by the delivery, core loop. The engine would refuse as well, but only once the prompt is in.
"""

import asyncio

import msgspec

from app.core.errors import WorkerError
from app.core.router.wire import Wire
from app.core.router.worker_client import WorkerClient

# Estimates were off by a factor of two for code and for rare scripts.
NEAR = 0.5
COUNT_LIMIT_S = 15.0


async def count_prompt(client: WorkerClient, wire: Wire, body: bytes) -> int | None:
    """Tokens of the prompt; None where the worker cannot say.

    Chat goes through the model's template first, tools included.
    """
    try:
        async with asyncio.timeout(COUNT_LIMIT_S):
            fields = msgspec.json.decode(body)
            if wire is Wire.CHAT:
                text = await _templated(client, fields)
            elif wire is Wire.COMPLETIONS:
                text = fields.get("prompt")
            else:
                return None
            if not isinstance(text, str):
                return None
            found = await _ask(client, "/tokenize", {"content": text, "add_special": True})
            tokens = found.get("tokens") if found else None
            return len(tokens) if isinstance(tokens, list) else None
    except (WorkerError, TimeoutError, msgspec.DecodeError):
        return None


async def _templated(client: WorkerClient, fields: dict[str, object]) -> object:
    names = ("messages", "tools", "tool_choice", "chat_template_kwargs")
    asked = {name: fields[name] for name in names if name in fields}
    found = await _ask(client, "/apply-template", asked)
    return found.get("prompt") if found else None


async def _ask(
    client: WorkerClient, path: str, fields: dict[str, object]
) -> dict[str, object] | None:
    response = await client.request("POST", path, msgspec.json.encode(fields))
    body = await response.read()
    if response.status != 200:
        return None
    found = msgspec.json.decode(body)
    return found if isinstance(found, dict) else None
