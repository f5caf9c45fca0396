"""The compiled table: which rule is the first that fits, in microseconds. Pure and immutable.

Built by `router.py` when rules are read. A request picks one bitmap from each column (`columns.py`),
all of them are ANDed, and the lowest bit that is left is the rule: the cost follows the number of
kinds of condition, not the number of rules (bit vectors for packet classification, Lakshman and
Stiliadis, SIGCOMM 1998). Text is read last, and only while a rule that looks at it is still in front.
"""

from collections.abc import Callable, Mapping, Sequence

from app.core.router.columns import (
    Bits,
    FlagColumn,
    RangeColumn,
    SetColumn,
    ValueColumn,
)
from app.core.router.features import RequestFeatures
from app.core.router.rules import Conditions, Rule
from app.core.router.text_columns import Keywords, Regexes

NO_RULE = -1


class Table:
    """The rules, compiled. Rules are numbered by their order."""

    __slots__ = (
        "_characters",
        "_flags",
        "_headers",
        "_keywords",
        "_model_prefixes",
        "_models",
        "_path_models",
        "_path_prefixes",
        "_paths",
        "_reads",
        "_regexes",
        "_sessions",
        "_tags",
        "_tags_seen",
        "_texts",
        "_tokens",
        "rules",
    )

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = tuple(rules)
        conditions = [rule.conditions for rule in self.rules]
        count = len(conditions)

        def values(of: Callable[[Conditions], Sequence[str]], *, fold: bool) -> ValueColumn | None:
            given = {rule: of(each) for rule, each in enumerate(conditions) if of(each)}
            return ValueColumn(count, given, fold=fold) if given else None

        def bounds(
            of: Callable[[Conditions], tuple[int | None, int | None]],
        ) -> RangeColumn | None:
            given = {
                rule: of(each) for rule, each in enumerate(conditions) if of(each) != (None, None)
            }
            return RangeColumn(count, given) if given else None

        self._flags = FlagColumn(count, dict(enumerate(map(_flags_of, conditions))), 4)
        self._paths = values(lambda each: each.paths, fold=False)
        self._path_prefixes = values(
            lambda each: [prefix + "*" for prefix in each.path_prefixes], fold=False
        )
        self._path_models = values(lambda each: each.path_models, fold=True)
        self._models = values(lambda each: each.models, fold=True)
        self._model_prefixes = values(
            lambda each: [prefix + "*" for prefix in each.model_prefixes], fold=True
        )
        self._sessions = values(lambda each: each.sessions, fold=False)
        self._characters = bounds(lambda each: (each.min_characters, each.max_characters))
        self._tokens = bounds(lambda each: (each.min_prompt_tokens, each.max_prompt_tokens))
        self._headers = _header_columns(conditions)
        self._tags = _tags_column(conditions)
        self._tags_seen: dict[tuple[str, ...], Bits] = {}
        self._keywords = Keywords(conditions)
        self._regexes = Regexes(conditions, self._keywords)
        # Keywords first: they are the cheaper.
        self._texts = (*self._keywords.columns, *self._regexes.columns)
        self._reads = bytes(map(self._text_columns_of, conditions))

    def _text_columns_of(self, conditions: Conditions) -> int:
        """Bits of the text columns that a rule with `conditions` looks at."""
        found = 0
        for place, column in enumerate(self._texts):
            is_keyword = place < len(self._keywords.columns)
            if column.scope == conditions.scope and (
                conditions.keywords if is_keyword else conditions.regexes
            ):
                found |= 1 << place
        return found

    def find(self, features: RequestFeatures) -> int:
        """The number of the first rule that fits, or `NO_RULE`."""
        left = self._without_text(features)
        read = 0
        while left:
            first = (left & -left).bit_length() - 1
            unread = self._reads[first] & ~read
            if not unread:
                return first
            place = (unread & -unread).bit_length() - 1
            left &= self._texts[place].bits(features)
            read |= 1 << place
        return NO_RULE

    def _without_text(self, features: RequestFeatures) -> Bits:
        left = self._flags.bits(
            features.has_tools
            + 2 * features.has_images
            + 4 * features.wants_json
            + 8 * features.is_stream
        )
        if self._paths is not None:
            left &= self._paths.bits(features.path or None)
        if self._path_prefixes is not None:
            left &= self._path_prefixes.bits(features.path or None)
        if self._path_models is not None:
            left &= self._path_models.bits(features.path_model or None)
        if self._models is not None:
            left &= self._models.bits(features.model or None)
        if self._model_prefixes is not None:
            left &= self._model_prefixes.bits(features.model or None)
        if self._tags is not None:
            left &= self._tag_bits(self._tags, features.tags)
        if self._characters is not None:
            left &= self._characters.bits(features.characters)
        if self._tokens is not None:
            left &= self._tokens.bits(features.tokens)
        if self._sessions is not None:
            left &= self._sessions.bits(features.session or None)
        for name, column in self._headers.items():
            left &= column.bits(features.headers.get(name))
        return left

    def _tag_bits(self, column: SetColumn[str], tags: tuple[str, ...]) -> Bits:
        found = self._tags_seen.get(tags)
        if found is None:
            found = column.bits({tag.casefold() for tag in tags})
            if len(self._tags_seen) >= _REMEMBERED_TAG_SETS:
                self._tags_seen.clear()
            if len(tags) <= _MOST_REMEMBERED_TAGS:
                self._tags_seen[tags] = found
        return found

    def implied(self, conditions: Conditions) -> Bits:
        """The rules that fit every request that `conditions` let through, as far as is certain."""
        left = self._flags.implied(_flags_of(conditions))
        for column, patterns in (
            (self._paths, conditions.paths),
            (self._path_prefixes, _as_prefixes(conditions.paths, conditions.path_prefixes)),
            (self._path_models, conditions.path_models),
            (self._models, conditions.models),
            (self._model_prefixes, _as_prefixes(conditions.models, conditions.model_prefixes)),
            (self._sessions, conditions.sessions),
        ):
            if column is not None:
                left &= column.implied(patterns)
        if self._tags is not None:
            left &= self._tags.implied(
                [tag.casefold() for tag in conditions.tags.any],
                [tag.casefold() for tag in conditions.tags.all],
            )
        if self._characters is not None:
            left &= self._characters.implied(conditions.min_characters, conditions.max_characters)
        if self._tokens is not None:
            left &= self._tokens.implied(conditions.min_prompt_tokens, conditions.max_prompt_tokens)
        wanted = {header.name: header.patterns or (None,) for header in conditions.headers}
        for name, column in self._headers.items():
            left &= column.implied(wanted.get(name, ()))
        return left & self._keywords.implied(conditions) & self._regexes.implied(conditions)


_REMEMBERED_TAG_SETS = 2048
_MOST_REMEMBERED_TAGS = 16


def _flags_of(conditions: Conditions) -> tuple[bool | None, ...]:
    return (
        conditions.has_tools,
        conditions.has_images,
        conditions.wants_json,
        conditions.is_stream,
    )


def _as_prefixes(patterns: Sequence[str], prefixes: Sequence[str]) -> Sequence[str]:
    """What is certain about a value's beginning, from either kind of condition."""
    return [prefix + "*" for prefix in prefixes] or patterns


def _header_columns(conditions: Sequence[Conditions]) -> Mapping[str, ValueColumn]:
    by_name: dict[str, dict[int, Sequence[str | None]]] = {}
    for rule, each in enumerate(conditions):
        for header in each.headers:
            by_name.setdefault(header.name, {})[rule] = header.patterns or (None,)
    return {name: ValueColumn(len(conditions), given, fold=True) for name, given in by_name.items()}


def _tags_column(conditions: Sequence[Conditions]) -> SetColumn[str] | None:
    any_of, all_of = {}, {}
    for rule, each in enumerate(conditions):
        if each.tags.any:
            any_of[rule] = [tag.casefold() for tag in each.tags.any]
        if each.tags.all:
            all_of[rule] = [tag.casefold() for tag in each.tags.all]
    return SetColumn(len(conditions), any_of, all_of) if any_of or all_of else None
