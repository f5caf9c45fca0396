"""Turns what a file says (`routes_schema.py`) into rules and targets (`rules.py`). Pure.

Called by `routes_file.py` for one entry at a time. Everything that a schema cannot say is checked
here; a `Report` takes the mistakes, so that all of a file are named at once.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from app.core.router.decision import (
    AUTO,
    NO_CACHE,
    NO_FALLBACKS,
    Action,
    CachePolicy,
    TargetKind,
)
from app.core.router.patterns import is_glob
from app.core.router.regexes import check_regex
from app.core.router.routes_schema import (
    PoolEntry,
    RemoteEntry,
    RuleEntry,
    ThenEntry,
    WhenEntry,
    WordsEntry,
)
from app.core.router.rules import (
    AnyAll,
    Conditions,
    HeaderCondition,
    PoolTarget,
    RemoteTarget,
    Rule,
)
from app.core.router.templates import PromptTemplate, TemplateBrokenError

# Takes a key below the entry, a sentence, and a word for the kind of mistake.
Report = Callable[[tuple[str | int, ...], str, str], None]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def conditions_of(entry: WhenEntry, report: Report) -> Conditions:
    if entry.regex and not entry.use_regex:
        report(
            ("when", "regex"),
            "Regular expressions need `use_regex: true` beside them. If plain words do, use "
            "`keywords`, which cost nothing more however many there are.",
            "regex_not_asked_for",
        )
    for at, pattern in enumerate(_words(entry.regex)):
        reason = check_regex(pattern)
        if reason:
            key: tuple[str | int, ...] = ("when", "regex")
            report(
                (*key, at) if isinstance(entry.regex, list) else key,
                f"RE2 cannot take {pattern!r}: {reason}.",
                "regex",
            )
            return Conditions()
    return Conditions(
        paths=_words(entry.path),
        path_prefixes=_prefixes(entry.path_prefix, ("when", "path_prefix"), report),
        path_models=_words(entry.path_model),
        models=_words(entry.model),
        model_prefixes=_prefixes(entry.model_prefix, ("when", "model_prefix"), report),
        tags=_any_all(entry.tags),
        headers=_headers(entry.headers or {}, report),
        keywords=_keywords(entry.keywords, report),
        regexes=_words(entry.regex),
        scope=entry.look_in if entry.keywords or entry.regex else "all",
        min_characters=entry.min_characters,
        max_characters=entry.max_characters,
        min_prompt_tokens=entry.min_prompt_tokens,
        max_prompt_tokens=entry.max_prompt_tokens,
        has_tools=entry.has_tools,
        has_images=entry.has_images,
        wants_json=entry.wants_json,
        is_stream=entry.stream,
        sessions=_words(entry.session),
    )


def rule_of(
    entry: RuleEntry, kinds: Mapping[str, TargetKind], folder: Path, line: int, report: Report
) -> Rule:
    """A rule; `kinds` says what the file's own names stand for, all others are local models."""
    return Rule(
        name=entry.name,
        conditions=conditions_of(entry.when, report),
        action=_action(entry.then, kinds, folder, report),
        line=line,
    )


def _action(
    then: ThenEntry, kinds: Mapping[str, TargetKind], folder: Path, report: Report
) -> Action:
    if (then.target is None) == (then.reply is None):
        report(("then",), "Give either a `target` or a `reply`.", "value")
        return Action()
    target = then.target or ""
    fallbacks = (
        {}
        if then.fallbacks is None
        else {
            reason: name
            for reason in ("overloaded", "unavailable", "context_exceeded", "failed")
            if (name := getattr(then.fallbacks, reason)) is not None
        }
    )
    for reason, name in fallbacks.items():
        if name == target or then.reply is not None:
            text = (
                "A fixed reply needs no fallback."
                if then.reply is not None
                else f"{name!r} cannot be its own fallback."
            )
            report(("then", "fallbacks", reason), text, "value")
    if then.overload == "degrade" and "overloaded" not in fallbacks:
        report(
            ("then", "overload"),
            "`degrade` needs a fallback for `overloaded` to go to.",
            "missing_fallback",
        )
    return Action(
        target=target,
        kind=TargetKind.CANNED if then.reply is not None else kinds.get(target, TargetKind.LOCAL),
        canned=then.reply or "",
        system_prompt=_template(then.system_prompt, "system_prompt", folder, report),
        chat_template=_template(then.chat_template, "chat_template", folder, report),
        cache=NO_CACHE
        if then.cache is None
        else CachePolicy(then.cache.ttl_s, then.cache.streams_with_tools),
        priority=then.priority,
        max_tokens=then.max_tokens,
        max_seconds=then.max_seconds,
        overload=then.overload,
        fallbacks=fallbacks or NO_FALLBACKS,
    )


def _template(name: str | None, key: str, folder: Path, report: Report) -> Path | None:
    if name is None:
        return None
    path = folder / Path(name).expanduser()
    try:
        PromptTemplate.read(path)
    except TemplateBrokenError as error:
        where = f"{path}, line {error.line}" if error.line else str(path)
        report(("then", key), f"The template {where}: {error.text}.", "template")
    return path


def remote_of(name: str, entry: RemoteEntry, line: int, report: Report) -> RemoteTarget:
    if entry.key_env and entry.key_keyring:
        report(("key_keyring",), "Give `key_env` or `key_keyring`, not both.", "value")
    if "@" in entry.base_url.partition("//")[2].partition("/")[0]:
        report(("base_url",), "Names and passwords do not belong in an address.", "secret")
    for header, value in entry.headers.items():
        if not _HEADER_NAME.fullmatch(header) or not value.isprintable() or not value.isascii():
            report(("headers", header), "This is no HTTP header.", "value")
        if header.lower() in {"authorization", "x-api-key", "api-key"}:
            report(
                ("headers", header),
                "Keys do not belong in this file: name an environment variable in `key_env`, or a "
                "key of the keyring in `key_keyring`.",
                "secret",
            )
    return RemoteTarget(
        name=name,
        base_url=entry.base_url.rstrip("/"),
        key_env=entry.key_env,
        key_keyring=entry.key_keyring,
        model=entry.model,
        models=dict(entry.models),
        headers=dict(entry.headers),
        connect_timeout_s=entry.connect_timeout_s,
        first_byte_timeout_s=entry.first_byte_timeout_s,
        idle_timeout_s=entry.idle_timeout_s,
        verify_tls=entry.verify_tls,
        ca_file=entry.ca_file,
        use_proxy=entry.use_proxy,
        context_tokens=entry.context_tokens,
        max_in_flight=entry.max_in_flight,
        line=line,
    )


def pool_of(
    name: str, entry: PoolEntry, kinds: Mapping[str, TargetKind], line: int, report: Report
) -> PoolTarget:
    for at, member in enumerate(entry.members):
        if kinds.get(member) is not TargetKind.REMOTE:
            report(
                ("members", at),
                f"{member!r} is none of this file's remotes; a pool is made of those.",
                "unknown_target",
            )
        if member in entry.members[:at]:
            report(("members", at), f"{member!r} is in this pool already.", "value")
    if entry.max_back_off_s < entry.back_off_s:
        report(("max_back_off_s",), "It cannot be shorter than `back_off_s`.", "value")
    return PoolTarget(
        name=name,
        members=tuple(entry.members),
        strategy=entry.strategy,
        health_path=entry.health_path,
        health_interval_s=entry.health_interval_s,
        health_timeout_s=entry.health_timeout_s,
        breaker_failures=entry.breaker_failures,
        back_off_s=entry.back_off_s,
        max_back_off_s=entry.max_back_off_s,
        line=line,
    )


def kinds_of(remotes: Mapping[str, object], pools: Mapping[str, object]) -> dict[str, TargetKind]:
    """What each name of the file stands for."""
    kinds = {AUTO: TargetKind.AUTO}
    kinds.update(dict.fromkeys(pools, TargetKind.POOL))
    kinds.update(dict.fromkeys(remotes, TargetKind.REMOTE))
    return kinds


def _words(given: str | list[str] | None) -> tuple[str, ...]:
    if given is None:
        return ()
    return (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))


def _any_all(given: str | list[str] | WordsEntry | None) -> AnyAll:
    if isinstance(given, WordsEntry):
        return AnyAll(any=_words(given.any), all=_words(given.all))
    return AnyAll(any=_words(given))


def _keywords(given: str | list[str] | WordsEntry | None, report: Report) -> AnyAll:
    found = _any_all(given)
    sides = []
    for words in (found.any, found.all):
        stripped = tuple(dict.fromkeys(" ".join(word.split()) for word in words))
        for original, word in zip(words, stripped, strict=False):
            if not word.strip("*"):
                report(("when", "keywords"), f"{original!r} has no letters to look for.", "value")
                return AnyAll()
        sides.append(stripped)
    return AnyAll(any=sides[0], all=sides[1])


def _prefixes(
    given: str | list[str] | None, key: tuple[str, ...], report: Report
) -> tuple[str, ...]:
    prefixes = tuple(word.removesuffix("*") for word in _words(given))
    for prefix in prefixes:
        if is_glob(prefix) or not prefix:
            report(key, f"{prefix!r} is no beginning of a name; patterns go elsewhere.", "value")
            return ()
    return prefixes


def _headers(
    given: Mapping[str, str | list[str] | None], report: Report
) -> tuple[HeaderCondition, ...]:
    found: dict[str, HeaderCondition] = {}
    for name, values in given.items():
        key = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            report(("when", "headers", name), f"{name!r} is no name of a header.", "value")
        if key in found:
            report(("when", "headers", name), f"`{name}` is given twice.", "value")
        found[key] = HeaderCondition(key, _words(values))
    return tuple(found.values())
