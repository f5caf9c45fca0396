"""What the table answers: where a request goes, how it is treated, and why. Pure.

Made by `router.py`, read by the dispatcher, the log and the `X-Coolhead-Decision` header. Immutable,
so it may cross threads.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

AUTO = "auto"

Overload = Literal["queue", "reject", "degrade"]


class TargetKind(StrEnum):
    """What a target's name stands for.

    `AUTO` is the model that the request asks for, and the default model where it asks for `auto` or
    for none; a name that is not installed is refused with the list of those that are.
    """

    LOCAL = "local"
    AUTO = "auto"
    REMOTE = "remote"
    POOL = "pool"
    CANNED = "canned"


class FallbackReason(StrEnum):
    """Why a request may go on to another target, before its first byte is out."""

    OVERLOADED = "overloaded"
    UNAVAILABLE = "unavailable"
    CONTEXT_EXCEEDED = "context_exceeded"
    FAILED = "failed"


class CachePolicy(msgspec.Struct, frozen=True):
    """Whether an equal request may be answered from memory. `ttl_s` 0 means never."""

    ttl_s: float = 0.0
    streams_with_tools: bool = False

    @property
    def is_on(self) -> bool:
        return self.ttl_s > 0


NO_CACHE = CachePolicy()
NO_FALLBACKS: Mapping[str, str] = MappingProxyType({})


class Action(msgspec.Struct, frozen=True):
    """What a rule does with a request.

    Attributes:
        target: a local model's id, `auto`, or the name of a remote or a pool; empty with a canned
            reply.
        kind: what `target` stands for.
        canned: the reply's text, where the rule answers by itself.
        system_prompt: jinja2 file whose text becomes the request's system prompt.
        chat_template: jinja2 file that turns the messages into the prompt.
        cache: the exact response cache.
        priority: -10 to 10; the higher is served first.
        max_tokens: most tokens an answer may have; `max_seconds` the longest it may take.
        overload: what happens with nothing free; None for the user's setting.
        fallbacks: another target by `FallbackReason`, each used at most once.
    """

    target: str = AUTO
    kind: TargetKind = TargetKind.AUTO
    canned: str = ""
    system_prompt: Path | None = None
    chat_template: Path | None = None
    cache: CachePolicy = NO_CACHE
    priority: int = 0
    max_tokens: int | None = None
    max_seconds: float | None = None
    overload: Overload | None = None
    fallbacks: Mapping[str, str] = NO_FALLBACKS


class Decision(msgspec.Struct, frozen=True):
    """A target and the reason.

    Attributes:
        rule: the name of the rule that matched.
        reason: the rule's conditions in words.
        model: the name the request asks for, the path's before the body's; may be empty.
        path: where the request goes on, without the `/model/<name>` in front.
        microseconds: what the decision took, features not counted.
    """

    rule: str
    reason: str
    action: Action
    model: str = ""
    path: str = ""
    microseconds: float = 0.0

    @property
    def target(self) -> str:
        return self.action.target

    @property
    def kind(self) -> TargetKind:
        return self.action.kind

    @property
    def priority(self) -> int:
        return self.action.priority

    @property
    def fallbacks(self) -> Mapping[str, str]:
        return self.action.fallbacks

    @property
    def canned(self) -> str:
        return self.action.canned

    @property
    def cache(self) -> CachePolicy:
        return self.action.cache

    @property
    def system_prompt(self) -> Path | None:
        return self.action.system_prompt

    @property
    def chat_template(self) -> Path | None:
        return self.action.chat_template

    @property
    def max_tokens(self) -> int | None:
        return self.action.max_tokens

    @property
    def max_seconds(self) -> float | None:
        return self.action.max_seconds

    @property
    def overload(self) -> Overload | None:
        return self.action.overload
