"""Why a rule fits a request or does not, condition by condition. Pure.

A plain interpreter of rules, slow and easy to read: `coolhead route --explain` shows its words, and the
tests hold the compiled table against it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from app.core.router import automaton, regexes
from app.core.router.automaton import fold, is_word_character
from app.core.router.features import RequestFeatures
from app.core.router.patterns import fits
from app.core.router.piece_hits import tail
from app.core.router.rules import AnyAll, Conditions, Rule


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: what was asked for, and whether the request has it."""

    key: str
    wanted: str
    holds: bool


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """A rule and the first of its conditions that failed; None where it fits."""

    rule: Rule
    failed: Check | None


def check_rules(rules: Sequence[Rule], features: RequestFeatures) -> tuple[RuleCheck, ...]:
    """Top-down until the first rule that fits, which is the last one returned."""
    done: list[RuleCheck] = []
    for rule in rules:
        failed = next(
            (check for check in checks(rule.conditions, features) if not check.holds), None
        )
        done.append(RuleCheck(rule, failed))
        if failed is None:
            break
    return tuple(done)


def checks(conditions: Conditions, features: RequestFeatures) -> Iterator[Check]:
    """Every condition that was given, the cheap ones first."""
    for key, wanted, value in (
        ("has_tools", conditions.has_tools, features.has_tools),
        ("has_images", conditions.has_images, features.has_images),
        ("wants_json", conditions.wants_json, features.wants_json),
        ("stream", conditions.is_stream, features.is_stream),
    ):
        if wanted is not None:
            yield Check(key, "yes" if wanted else "no", wanted == value)
    for key, patterns, text in (
        ("path", conditions.paths, features.path),
        ("session", conditions.sessions, features.session),
    ):
        if patterns:
            yield Check(key, " | ".join(patterns), _fits_one(patterns, text))
    for key, patterns, text in (
        ("path_model", conditions.path_models, features.path_model),
        ("model", conditions.models, features.model),
    ):
        if patterns:
            yield Check(key, " | ".join(patterns), _fits_one_folded(patterns, text))
    if conditions.path_prefixes:
        yield Check(
            "path_prefix",
            " | ".join(conditions.path_prefixes),
            features.path.startswith(conditions.path_prefixes),
        )
    if conditions.model_prefixes:
        prefixes = tuple(prefix.casefold() for prefix in conditions.model_prefixes)
        model = features.model.casefold()
        yield Check(
            "model_prefix",
            " | ".join(conditions.model_prefixes),
            bool(model) and model.startswith(prefixes),
        )
    for key, low, high, number in (
        (
            "characters",
            conditions.min_characters,
            conditions.max_characters,
            features.characters,
        ),
        (
            "prompt_tokens",
            conditions.min_prompt_tokens,
            conditions.max_prompt_tokens,
            features.tokens,
        ),
    ):
        if low is not None:
            yield Check(f"min_{key}", f"{low:,} (it has {number:,})", number >= low)
        if high is not None:
            yield Check(f"max_{key}", f"{high:,} (it has {number:,})", number <= high)
    if conditions.tags:
        tags = {tag.casefold() for tag in features.tags}
        yield from _any_all("tags", conditions.tags, lambda tag: tag.casefold() in tags)
    for header in conditions.headers:
        given = features.headers.get(header.name)
        if header.patterns:
            holds = given is not None and _fits_one_folded(
                header.patterns, given, may_be_empty=True
            )
            yield Check(f"headers.{header.name}", " | ".join(header.patterns), holds)
        else:
            yield Check(f"headers.{header.name}", "absent", given is None)
    texts = features.texts if conditions.scope == "all" else features.last_user_texts
    if conditions.keywords:
        folded = [fold(text) for text in tail(texts, automaton.LONGEST_TEXT)]
        yield from _any_all(
            "keywords",
            conditions.keywords,
            lambda word: any(has_keyword(text, word) for text in folded),
        )
    if conditions.regexes:
        ends = list(tail(texts, regexes.LONGEST_TEXT))
        yield Check(
            "regex",
            " | ".join(conditions.regexes),
            any(regexes.search(pattern, text) for pattern in conditions.regexes for text in ends),
        )


def describe(conditions: Conditions) -> str:
    """The conditions in a few words, for a decision's reason."""
    said: list[str] = []
    for check in checks(conditions, RequestFeatures()):
        wanted = check.wanted.partition(" (it has")[0]
        if len(wanted) > _LONGEST_WANTED:
            wanted = wanted[:_LONGEST_WANTED] + "..."
        said.append(f"{check.key}: {wanted}")
    return "; ".join(said) or "fits every request"


_LONGEST_WANTED = 60


def has_keyword(folded: str, keyword: str) -> bool:
    """Whether `keyword` stands in a folded text, by itself where its script has spaces."""
    word = fold(keyword)
    stem = word.strip("*")
    closed_left = not word.startswith("*") and is_word_character(stem[0])
    closed_right = not word.endswith("*") and is_word_character(stem[-1])
    at = folded.find(stem)
    while at >= 0:
        end = at + len(stem)
        joins_left = closed_left and at > 0 and is_word_character(folded[at - 1])
        joins_right = closed_right and end < len(folded) and is_word_character(folded[end])
        if not joins_left and not joins_right:
            return True
        at = folded.find(stem, at + 1)
    return False


def _any_all(key: str, wanted: AnyAll, has: Callable[[str], bool]) -> Iterator[Check]:
    if wanted.any:
        yield Check(f"{key}.any", ", ".join(wanted.any), any(has(each) for each in wanted.any))
    if wanted.all:
        missing = [each for each in wanted.all if not has(each)]
        yield Check(f"{key}.all", ", ".join(wanted.all), not missing)


def _fits_one(patterns: Sequence[str], value: str) -> bool:
    return bool(value) and any(fits(pattern, value) for pattern in patterns)


def _fits_one_folded(patterns: Sequence[str], value: str, *, may_be_empty: bool = False) -> bool:
    if not value and not may_be_empty:
        return False
    folded = value.casefold()
    return any(fits(pattern.casefold(), folded) for pattern in patterns)
