"""The shape of `routes.yaml`: every key, its type, its bounds and its words. Pure.

`routes_file.py` reads files against it; `resources/routes.schema.json`, which editors use, is made
from it.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app.core.router.rules import Scope, Strategy

MOST_RULES = 10_000

_Word = Annotated[str, Meta(min_length=1, max_length=500)]
_Words = _Word | Annotated[list[_Word], Meta(min_length=1, max_length=5_000)]
_Count = Annotated[int, Meta(ge=0)]
_Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Unknown keys are mistakes: a condition that was misspelt must not be one that is ignored."""


class WordsEntry(_Strict, frozen=True):
    """Lists of texts: at least one of `any`, every one of `all`."""

    any: _Words | None = None
    all: _Words | None = None


_AnyAll = _Word | Annotated[list[_Word], Meta(min_length=1, max_length=5_000)] | WordsEntry


class WhenEntry(_Strict, frozen=True):
    """Conditions; all that are given must hold. A list means: one of these."""

    path: Annotated[
        _Words | None, Meta(description="The request's path; `*` stands for anything.")
    ] = None
    path_prefix: Annotated[_Words | None, Meta(description="How the path begins.")] = None
    path_model: Annotated[
        _Words | None, Meta(description="The name in `/model/<name>/v1/...`; `*` and `?` allowed.")
    ] = None
    model: Annotated[
        _Words | None,
        Meta(
            description="The model asked for: a name, or a pattern with `*` and `?`. Case is ignored."
        ),
    ] = None
    model_prefix: Annotated[
        _Words | None, Meta(description="How the name of the model asked for begins.")
    ] = None
    tags: Annotated[
        _AnyAll | None,
        Meta(description="Tags from the body's field `tags` or the header `X-Coolhead-Tags`."),
    ] = None
    headers: Annotated[
        dict[str, _Words | None] | None,
        Meta(
            description="By name: a value or pattern (`*` for present at all), or null for absent."
        ),
    ] = None
    keywords: Annotated[
        _AnyAll | None,
        Meta(
            description="Words in the messages, in any script, without regard to case. Whole words, "
            "unless a `*` opens an end."
        ),
    ] = None
    regex: Annotated[
        _Words | None,
        Meta(
            description="RE2 regular expressions, one of which is found. Needs `use_regex: true`."
        ),
    ] = None
    use_regex: Annotated[
        bool, Meta(description="Says that `regex` is meant: it is the costliest condition.")
    ] = False
    look_in: Annotated[
        Scope,
        Meta(description="What keywords and regex read: all messages, or the user's last one."),
    ] = "all"
    min_characters: Annotated[_Count | None, Meta(description="Of all messages.")] = None
    max_characters: Annotated[_Count | None, Meta(description="Of all messages.")] = None
    min_prompt_tokens: Annotated[
        _Count | None,
        Meta(description="Of the whole prompt, estimated, tools and images included."),
    ] = None
    max_prompt_tokens: Annotated[
        _Count | None, Meta(description="Of the whole prompt, estimated.")
    ] = None
    has_tools: Annotated[bool | None, Meta(description="Whether tools are offered.")] = None
    has_images: Annotated[bool | None, Meta(description="Whether an image is in a message.")] = None
    wants_json: Annotated[
        bool | None, Meta(description="Whether JSON, or JSON of a schema, is asked for.")
    ] = None
    stream: Annotated[bool | None, Meta(description="Whether the answer is streamed.")] = None
    session: Annotated[
        _Words | None, Meta(description="The client's session id; `*` for any session at all.")
    ] = None


class CacheEntry(_Strict, frozen=True):
    """Answers an equal request from memory."""

    ttl_s: Annotated[_Seconds, Meta(description="How long an answer may be given again.")]
    streams_with_tools: Annotated[
        bool, Meta(description="Also streamed answers to requests with tools.")
    ] = False


class FallbacksEntry(_Strict, frozen=True):
    """Another target, by what happened to the first; each is used at most once."""

    overloaded: Annotated[_Word | None, Meta(description="Nothing free, queue full.")] = None
    unavailable: Annotated[_Word | None, Meta(description="Not loaded, not reachable.")] = None
    context_exceeded: Annotated[_Word | None, Meta(description="The prompt is too long.")] = None
    failed: Annotated[_Word | None, Meta(description="Failed before the first byte.")] = None


class ThenEntry(_Strict, frozen=True):
    """What to do with a request that fits."""

    target: Annotated[
        _Word | None,
        Meta(
            description="A local model, a remote, a pool, or `auto`: the model asked for where there "
            "is one, else the default model."
        ),
    ] = None
    reply: Annotated[
        Annotated[str, Meta(max_length=100_000)] | None,
        Meta(description="A fixed answer, instead of a target."),
    ] = None
    system_prompt: Annotated[
        _Word | None,
        Meta(description="jinja2 file, beside this one, that gives the system prompt."),
    ] = None
    chat_template: Annotated[
        _Word | None, Meta(description="jinja2 file that makes the prompt from the messages.")
    ] = None
    cache: Annotated[CacheEntry | None, Meta(description="The exact response cache.")] = None
    priority: Annotated[
        int, Meta(ge=-10, le=10, description="The higher is served first; 0 is usual.")
    ] = 0
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Most tokens an answer may have.")
    ] = None
    max_seconds: Annotated[
        _Seconds | None, Meta(description="Longest time an answer may take.")
    ] = None
    overload: Annotated[
        Literal["queue", "reject", "degrade"] | None,
        Meta(description="With nothing free: wait, refuse, or go to the `overloaded` fallback."),
    ] = None
    fallbacks: Annotated[FallbacksEntry | None, Meta(description="Where to go otherwise.")] = None


class RuleEntry(_Strict, frozen=True):
    """A rule: the first one that fits decides."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    then: ThenEntry
    when: WhenEntry = WhenEntry()
    enabled: Annotated[bool, Meta(description="false switches the rule off.")] = True


class RemoteEntry(_Strict, frozen=True):
    """An OpenAI-compatible endpoint. Keys never stand in this file."""

    base_url: Annotated[
        str,
        Meta(
            pattern=r"^https?://[^\s/]+",
            description="For example https://example.org/v1, with the /v1.",
        ),
    ]
    key_env: Annotated[str, Meta(description="Environment variable that holds the key.")] = ""
    key_keyring: Annotated[
        str, Meta(description="Name of the key in the system's keyring, under `coolhead`.")
    ] = ""
    model: Annotated[str, Meta(description="Model to ask for where `models` names none.")] = ""
    models: Annotated[
        dict[str, _Word], Meta(description="The remote's name for a model, by ours.")
    ] = {}
    headers: Annotated[dict[str, str], Meta(description="Sent with every request.")] = {}
    connect_timeout_s: _Seconds = 5.0
    first_byte_timeout_s: _Seconds = 120.0
    idle_timeout_s: _Seconds = 300.0
    verify_tls: Annotated[bool, Meta(description="Check the certificate.")] = True
    ca_file: Annotated[str, Meta(description="PEM file with a further authority.")] = ""
    use_proxy: Annotated[bool, Meta(description="Respect HTTP_PROXY and the like.")] = True
    context_tokens: Annotated[
        _Count, Meta(description="Its context length, 0 where it is not known.")
    ] = 0
    max_in_flight: Annotated[_Count, Meta(description="Most requests at once, 0 for any.")] = 0


class PoolEntry(_Strict, frozen=True):
    """Several remotes behind one name."""

    members: Annotated[list[_Word], Meta(min_length=1, max_length=100)]
    strategy: Strategy = "round_robin"
    health_path: Annotated[
        str, Meta(description="Asked under each base URL; empty for no health checks.")
    ] = "/models"
    health_interval_s: _Seconds = 15.0
    health_timeout_s: _Seconds = 3.0
    breaker_failures: Annotated[
        int, Meta(ge=1, le=1000, description="Failures in a row that take a member out.")
    ] = 3
    back_off_s: Annotated[_Seconds, Meta(description="First wait before it is tried again.")] = 5.0
    max_back_off_s: Annotated[_Seconds, Meta(description="The wait doubles up to this.")] = 120.0


class RoutesEntry(_Strict, frozen=True):
    """Coolhead's routing rules."""

    version: Literal[1] = 1
    remotes: dict[str, RemoteEntry] = {}
    pools: dict[str, PoolEntry] = {}
    rules: Annotated[list[RuleEntry], Meta(max_length=MOST_RULES)] = []


def json_schema() -> dict[str, Any]:
    """The schema for editors."""
    schema = msgspec.json.schema(RoutesEntry)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Coolhead routes.yaml",
        **schema,
    }
