"""Rules and named targets as they are once read and checked. Pure.

Made by `routes_file.py` from the user's file, or in code by users of the library; compiled by
`table.py`; remotes and pools are carried out by the dispatcher. Immutable, so any thread may read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from app.core.router.decision import Action

Scope = Literal["all", "last_user"]
Strategy = Literal["round_robin", "least_in_flight"]


@dataclass(frozen=True, slots=True)
class AnyAll:
    """At least one of `any` (where it is not empty) and every one of `all`."""

    any: tuple[str, ...] = ()
    all: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.any or self.all)


@dataclass(frozen=True, slots=True)
class HeaderCondition:
    """One of `patterns` has to fit; without patterns the header must be absent."""

    name: str
    patterns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Conditions:
    """What a request must be like; all that are given must hold, none given fits every request.

    A pattern is a text with `*` (anything) and `?` (one character); without them it must be equal.
    Models, tags and header values are compared without regard to case, and so are keywords.

    Attributes:
        paths: equal to one of them; `path_prefixes` start with one of them.
        path_models: patterns for the name in `/model/<name>/...`.
        models: patterns for the model asked for; `model_prefixes` its beginning.
        scope: what `keywords` and `regexes` look at: every message, or the user's last one.
        regexes: at least one is found.
        sessions: patterns.
    """

    paths: tuple[str, ...] = ()
    path_prefixes: tuple[str, ...] = ()
    path_models: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    model_prefixes: tuple[str, ...] = ()
    tags: AnyAll = AnyAll()
    headers: tuple[HeaderCondition, ...] = ()
    keywords: AnyAll = AnyAll()
    regexes: tuple[str, ...] = ()
    scope: Scope = "all"
    min_characters: int | None = None
    max_characters: int | None = None
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    has_tools: bool | None = None
    has_images: bool | None = None
    wants_json: bool | None = None
    is_stream: bool | None = None
    sessions: tuple[str, ...] = ()

    @property
    def reads_text(self) -> bool:
        return bool(self.keywords or self.regexes)

    @property
    def is_catch_all(self) -> bool:
        return self == ANYTHING


ANYTHING = Conditions()


@dataclass(frozen=True, slots=True)
class Rule:
    """Conditions and what to do. `line` is where the file has it, from 1; 0 for none."""

    name: str
    conditions: Conditions
    action: Action
    line: int = 0


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """An OpenAI-compatible endpoint elsewhere.

    Attributes:
        base_url: up to and including the `/v1`, without a slash at the end.
        key_env: environment variable with the key; `key_keyring` the name of a key in the keyring.
            At most one of them is set.
        model: what to ask for where `models` names nothing; empty for the name the client gave.
        models: the remote's name by the name that clients use.
        headers: sent with every request.
        connect_timeout_s: for a connection, TLS included.
        first_byte_timeout_s: until the answer begins.
        idle_timeout_s: between two pieces of an answer.
        verify_tls: check the certificate; `ca_file` adds an authority.
        use_proxy: respect the system's proxy settings.
        context_tokens: its context length; 0 where it is not known.
        max_in_flight: most requests at once; 0 for no limit.
    """

    name: str
    base_url: str
    key_env: str = ""
    key_keyring: str = ""
    model: str = ""
    models: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 120.0
    idle_timeout_s: float = 300.0
    verify_tls: bool = True
    ca_file: str = ""
    use_proxy: bool = True
    context_tokens: int = 0
    max_in_flight: int = 0
    line: int = 0


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """Several targets behind one name.

    Attributes:
        members: names of remotes.
        strategy: how the next one is chosen among those that are well.
        health_path: asked under the remote's base URL; empty for no health checks.
        health_interval_s: between two checks; `health_timeout_s` for one.
        breaker_failures: so many in a row open the circuit breaker.
        back_off_s: the first wait before a half-open probe; doubles up to `max_back_off_s`.
    """

    name: str
    members: tuple[str, ...]
    strategy: Strategy = "round_robin"
    health_path: str = "/models"
    health_interval_s: float = 15.0
    health_timeout_s: float = 3.0
    breaker_failures: int = 3
    back_off_s: float = 5.0
    max_back_off_s: float = 120.0
    line: int = 0


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """A whole file: rules in their order, and the targets that it names."""

    rules: tuple[Rule, ...] = ()
    remotes: Mapping[str, RemoteTarget] = field(default_factory=dict)
    pools: Mapping[str, PoolTarget] = field(default_factory=dict)
    source: str = ""
