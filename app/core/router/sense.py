"""Requests that no model can answer, or not this one: told so before anybody works on them. Pure.

The dispatcher asks about the request alone, the local delivery about it and the engine that is to answer.
"""

from collections.abc import Mapping

import msgspec

from app.core.backends.base import Capabilities
from app.core.errors import RequestInvalid, RequestUnsupported
from app.core.router.bodies import fields_of
from app.core.router.features import RequestFeatures
from app.core.router.wire_kinds import Wire

_PROMPT_KEYS: Mapping[Wire, str] = {
    Wire.CHAT: "messages",
    Wire.MESSAGES: "messages",
    Wire.COMPLETIONS: "prompt",
    Wire.RESPONSES: "input",
}
_EMBEDDINGS = frozenset({"/v1/embeddings", "/embeddings"})
_SHORTEST = 16
"""Bytes of JSON from which on a list has something in it; what is shorter is looked at."""


def check_asked(features: RequestFeatures) -> None:
    """Whether there is something to answer. Not for Ollama, where no messages mean a load.

    Raises:
        RequestInvalid: nothing is asked, or nothing may be answered.
    """
    if not features.body:
        raise RequestInvalid("The request has no body.")
    if features.max_tokens == 0 and features.wire is not Wire.OTHER:
        raise RequestInvalid(
            "The answer may have 0 tokens, and the shortest has one. Leave the limit out for none.",
            param="max_output_tokens" if features.wire is Wire.RESPONSES else "max_tokens",
        )
    key = _PROMPT_KEYS.get(features.wire)
    if key is None or features.last_user_texts:
        return
    given = bytes(fields_of(features.body).get(key, b""))
    if not given or (len(given) < _SHORTEST and not msgspec.json.decode(given)):
        what = "is empty" if given and given != b"null" else "is missing"
        raise RequestInvalid(f"`{key}` {what}: there is nothing to answer.", param=key)


def check_able(
    model_id: str, able: Capabilities, wire: Wire, path: str, features: RequestFeatures
) -> None:
    """Whether the engine that runs the model does what is asked; `wire` is spoken to it, on `path`.

    Raises:
        RequestUnsupported: it does not; another try would change nothing.
    """
    if features.has_images and not able.images:
        raise RequestUnsupported(f"{model_id} reads text only here, no images.", model=model_id)
    if wire is Wire.OTHER and path.partition("?")[0] in _EMBEDDINGS and not able.embeddings:
        raise RequestUnsupported(
            f"{model_id} writes answers here and makes no embeddings. A rule in routes.yaml can send "
            "these requests to an endpoint that does.",
            model=model_id,
        )
    if wire in {Wire.RESPONSES, Wire.MESSAGES} and f"/v1/{wire.value}" not in able.wires:
        raise RequestUnsupported(
            f"The engine that runs {model_id} does not speak /v1/{wire.value}; every engine speaks "
            "/v1/chat/completions.",
            model=model_id,
        )
