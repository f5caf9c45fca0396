"""Doubts about rules that are correct but cannot mean what they say. Pure.

Called after rules are read, by the command line and for the panel. Everything said here is certain: a
rule is only called dead where no request can reach it.
"""

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from ipaddress import ip_address
from urllib.parse import urlsplit

from app.core.router.automaton import fold
from app.core.router.decision import FallbackReason, TargetKind
from app.core.router.patterns import fits, is_glob
from app.core.router.problems import Problem
from app.core.router.rules import Conditions, RemoteTarget, RoutingRules, Rule
from app.core.router.table import Table

# Case folding makes at most three characters of one.
_LONGEST_FOLD = 3


def lint(
    rules: RoutingRules,
    table: Table,
    models: Collection[str] | None = None,
    own_ports: Collection[int] = (),
) -> tuple[Problem, ...]:
    """What is doubtful, in the order of the file.

    Args:
        rules: as read.
        table: the same rules, compiled.
        models: ids of the local models; None where they are not known, so that no target is doubted.
        own_ports: where our own endpoint listens, on loopback.
    """
    found = [
        *_dead_rules(rules, table),
        *_targets(rules, models),
        *_fallbacks(rules),
        *_looks_like_regex(rules),
        *_remotes(rules, own_ports),
    ]
    return tuple(sorted(found, key=lambda problem: problem.line))


def _dead_rules(rules: RoutingRules, table: Table) -> Iterator[Problem]:
    catch_all: Rule | None = None
    dead = 0
    for number, rule in enumerate(rules.rules):
        reason = contradiction(rule.conditions)
        if reason:
            dead |= 1 << number
            yield _doubt(rules, rule, "contradictory", f"It can never match: {reason}.")
            continue
        if catch_all is not None:
            yield _doubt(
                rules,
                rule,
                "after_catch_all",
                f"It can never match: rule {catch_all.name!r}{_at(catch_all)} before it fits every "
                "request.",
            )
            continue
        before = table.implied(rule.conditions) & ((1 << number) - 1) & ~dead
        if before:
            first = rules.rules[(before & -before).bit_length() - 1]
            dead |= 1 << number
            yield _doubt(
                rules,
                rule,
                "shadowed",
                f"It can never match: whatever fits it fits rule {first.name!r}{_at(first)} before "
                "it.",
            )
        elif rule.conditions.is_catch_all:
            catch_all = rule


def contradiction(conditions: Conditions) -> str:
    """Why no request can have all of these; empty where one can."""
    for low, high, unit in (
        (conditions.min_characters, conditions.max_characters, "characters"),
        (conditions.min_prompt_tokens, conditions.max_prompt_tokens, "tokens"),
    ):
        if low is not None and high is not None and low > high:
            return f"it asks for {low:,} {unit} at least and {high:,} at most"
    for patterns, prefixes, word, has_case in (
        (conditions.paths, conditions.path_prefixes, "path", True),
        (conditions.models, conditions.model_prefixes, "model", False),
    ):
        if patterns and prefixes and _exclude(patterns, [p + "*" for p in prefixes], has_case):
            return f"no {word} of its list begins as its {word}_prefix says"
    if (
        conditions.path_models
        and conditions.models
        and _exclude(conditions.path_models, conditions.models, has_case=False)
    ):
        return "the model in the path is the one asked for, and it asks for two"
    longest = conditions.max_characters
    if longest is not None and conditions.keywords:
        lengths = [len(fold(word).strip("*")) for word in conditions.keywords.all]
        if conditions.keywords.any:
            lengths.append(min(len(fold(word).strip("*")) for word in conditions.keywords.any))
        if max(lengths) > longest * _LONGEST_FOLD:
            return f"its keywords do not fit into {longest:,} characters"
    return ""


def _exclude(one: Sequence[str], other: Sequence[str], has_case: bool) -> bool:
    """Whether certainly no value fits a pattern of both lists."""
    left, right = (
        [pattern if has_case else pattern.casefold() for pattern in side] for side in (one, other)
    )
    if not any(map(is_glob, left)):
        return not any(fits(pattern, value) for value in left for pattern in right)
    if not any(map(is_glob, right)):
        return not any(fits(pattern, value) for value in right for pattern in left)
    return False


def _targets(rules: RoutingRules, models: Collection[str] | None) -> Iterator[Problem]:
    if models is None:
        return
    known = {*rules.remotes, *rules.pools, "auto"}
    plain = {_plain(model) for model in models}
    for rule in rules.rules:
        named = {"then.target": rule.action.target} if rule.action.target else {}
        named |= {f"then.fallbacks.{why}": name for why, name in rule.action.fallbacks.items()}
        for key, name in named.items():
            if name not in known and _plain(name) not in plain:
                near = get_close_matches(name, sorted({*known, *models}), 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                yield _doubt(
                    rules,
                    rule,
                    "unknown_target",
                    f"There is no model, remote or pool {name!r}.{hint}",
                    key,
                )


def _plain(model: str) -> str:
    """As models are found: capitals and a trailing ".gguf" do not matter."""
    return model.casefold().removesuffix(".gguf")


def _fallbacks(rules: RoutingRules) -> Iterator[Problem]:
    for rule in rules.rules:
        if rule.action.kind not in {TargetKind.REMOTE, TargetKind.POOL}:
            continue
        if not rule.action.fallbacks.keys() & {FallbackReason.UNAVAILABLE, FallbackReason.FAILED}:
            yield _doubt(
                rules,
                rule,
                "missing_fallback",
                f"{rule.action.target!r} is elsewhere and may be gone: without a fallback for "
                "`unavailable` or `failed`, requests fail with it.",
                "then.fallbacks",
            )
    if rules.rules and not any(rule.conditions.is_catch_all for rule in rules.rules):
        yield Problem(
            rules.source,
            rules.rules[-1].line,
            "rules",
            "No rule fits every request, so what is left goes to `auto`: the model asked for, or the "
            "default model. Say so with a last rule without `when`.",
            "missing_fallback",
            "warning",
        )


def _looks_like_regex(rules: RoutingRules) -> Iterator[Problem]:
    for rule in rules.rules:
        keywords = rule.conditions.keywords
        given = {
            "keywords": (*keywords.any, *keywords.all),
            "model": rule.conditions.models,
            "path": rule.conditions.paths,
        }
        for key, words in given.items():
            for word in words:
                if any(sign in word for sign in _REGEX_SIGNS) or (
                    word.startswith("^") or (len(word) > 1 and word.endswith("$"))
                ):
                    yield _doubt(
                        rules,
                        rule,
                        "regex_not_asked_for",
                        f"{word!r} looks like a regular expression and is taken literally; that "
                        "would be `regex` with `use_regex: true`.",
                        f"when.{key}",
                    )


_REGEX_SIGNS = (".*", ".+", r"\b", r"\d", r"\s", r"\w", "(?", "[a-z", "[0-9", "|")


def _remotes(rules: RoutingRules, own_ports: Collection[int]) -> Iterator[Problem]:
    for remote in rules.remotes.values():
        parts = urlsplit(remote.base_url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if is_loopback(parts.hostname or ""):
            if port in own_ports:
                text = "This is our own endpoint: requests would go round in a circle."
                yield _remote_doubt(rules, remote, "loop", text)
            else:
                text = (
                    "This runs on this machine but is none of our workers, so the guard neither "
                    "plans nor limits its memory."
                )
                yield _remote_doubt(rules, remote, "escapes_guard", text)
        elif parts.scheme == "http":
            text = "Prompts and keys go there in the clear; use https."
            yield _remote_doubt(rules, remote, "clear_text", text)
        if not remote.verify_tls:
            text = "Its certificate is not checked, so anyone on the way can read and answer."
            yield _remote_doubt(rules, remote, "tls_unchecked", text, "verify_tls")


def is_loopback(host: str) -> bool:
    """Whether a host's name is this machine by its very form."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback or (mapped or address).is_unspecified


def _doubt(rules: RoutingRules, rule: Rule, kind: str, text: str, key: str = "") -> Problem:
    where = f"rule {rule.name!r}" + (f", {key}" if key else "")
    return Problem(rules.source, rule.line, where, text, kind, "warning")


def _remote_doubt(
    rules: RoutingRules, remote: RemoteTarget, kind: str, text: str, key: str = "base_url"
) -> Problem:
    where = f"remotes.{remote.name}.{key}"
    return Problem(rules.source, remote.line, where, text, kind, "warning")


def _at(rule: Rule) -> str:
    return f" (line {rule.line})" if rule.line else ""
