"""The router as a library: rules in, decisions out, no server needed.

`Router.from_config("routes.yaml").route(request)`. Immutable but for the one reference that `reload`
and `replace` swap, so a decision sees one table, never half of two.
Thread: `route` from any thread; `replace` from the core loop, or from one verb of the command line.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec

from app.core.router.decision import Action, Decision
from app.core.router.explain import RuleCheck, check_rules, describe
from app.core.router.features import RequestFeatures, extract
from app.core.router.problems import Problem
from app.core.router.rules import RoutingRules
from app.core.router.table import NO_RULE, Table

DEFAULT_RULE = "(none)"

_PATHS = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
}


@dataclass(frozen=True, slots=True)
class CompiledRules:
    """One reading of the rules with all that was made of it; what a reload swaps.

    Attributes:
        reasons: by rule, its conditions in words.
    """

    rules: RoutingRules
    table: Table
    reasons: tuple[str, ...]


def compile_rules(rules: RoutingRules) -> CompiledRules:
    """Compiles rules; up to a second for thousands of them."""
    return CompiledRules(
        rules, Table(rules.rules), tuple(describe(rule.conditions) for rule in rules.rules)
    )


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision, what the request was seen as, and how far each rule before it got."""

    decision: Decision
    features: RequestFeatures
    checked: tuple[RuleCheck, ...]


class Router:
    """Decides where requests go.

    Args:
        rules: from `read_routes`, or made in code.
        path: the file that `reload` reads again.
    """

    def __init__(self, rules: RoutingRules, path: Path | None = None) -> None:
        self.path = path
        # Written by `replace` alone.
        self._compiled = compile_rules(rules)

    @classmethod
    def from_config(cls, path: str | Path) -> "Router":
        """A router for the rules in a file.

        Raises:
            RoutesInvalid: naming file, line and key path of every mistake.
        """
        from app.core.router.routes_file import read_routes

        return cls(read_routes(Path(path)), Path(path))

    @classmethod
    def default(cls) -> "Router":
        """A router without rules: each request goes to the model that it asks for."""
        return cls(RoutingRules())

    @property
    def rules(self) -> RoutingRules:
        """Rules, remotes and pools as they are now."""
        return self._compiled.rules

    def route(self, request: RequestFeatures | Mapping[str, Any] | bytes) -> Decision:
        """Where a request goes, and why.

        Args:
            request: features, or a request's body (as a mapping or as JSON), whose path is taken
                from what is in it.

        Raises:
            RequestInvalid: when a body is not JSON or of a wrong shape.
        """
        features = request if isinstance(request, RequestFeatures) else features_of(request)
        compiled = self._compiled
        start_ns = perf_counter_ns()
        number = compiled.table.find(features)
        if number == NO_RULE:
            rule, reason, action = DEFAULT_RULE, "no rule fits", _AUTO
        else:
            found = compiled.table.rules[number]
            rule, reason, action = found.name, compiled.reasons[number], found.action
        return Decision(
            rule,
            reason,
            action,
            features.model,
            features.path,
            (perf_counter_ns() - start_ns) / 1000,
        )

    def explain(self, request: RequestFeatures | Mapping[str, Any] | bytes) -> Explanation:
        """The decision with its whole reason; slow, for people."""
        features = request if isinstance(request, RequestFeatures) else features_of(request)
        return Explanation(
            self.route(features), features, check_rules(self._compiled.rules.rules, features)
        )

    def lint(
        self, models: Collection[str] | None = None, own_ports: Collection[int] = ()
    ) -> tuple[Problem, ...]:
        """What is doubtful about the rules (`lint.py`)."""
        from app.core.router.lint import lint

        return lint(self._compiled.rules, self._compiled.table, models, own_ports)

    def read_again(self) -> CompiledRules:
        """The file's rules as they are now, compiled and not yet in force; call it in an executor.

        Raises:
            RoutesInvalid: the rules in force stay.
        """
        from app.core.router.routes_file import read_routes

        return compile_rules(RoutingRules() if self.path is None else read_routes(self.path))

    def replace(self, compiled: CompiledRules) -> None:
        """Puts rules into force; decisions that are being made keep the old ones."""
        self._compiled = compiled

    def reload(self) -> None:
        """Reads the file again and puts it into force.

        Raises:
            RoutesInvalid: the rules in force stay.
        """
        self.replace(self.read_again())


_AUTO = Action()


def features_of(
    request: Mapping[str, Any] | bytes, path: str = "", headers: Mapping[str, str] | None = None
) -> RequestFeatures:
    """Features of a body; without a path, the one that such bodies are sent to.

    Raises:
        RequestInvalid: when it is not JSON or of a wrong shape.
    """
    body = request if isinstance(request, bytes) else msgspec.json.encode(request)
    if not path:
        keys = request if isinstance(request, Mapping) else _keys(body)
        path = next((_PATHS[key] for key in _PATHS if key in keys), "/v1/chat/completions")
    return extract(path, headers or {}, body)


def _keys(body: bytes) -> Collection[str]:
    try:
        found = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ()
    return found.keys()
