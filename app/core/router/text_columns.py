"""Columns for conditions that read text: the costly ones, asked last. Pure; parts of `table.py`.

Both scopes share one automaton and what it has found in each message.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from app.core.router import automaton, regexes
from app.core.router.automaton import KeywordAutomaton
from app.core.router.columns import Bits, SetColumn
from app.core.router.features import RequestFeatures
from app.core.router.piece_hits import PieceHits
from app.core.router.regexes import RegexSet, required_keyword
from app.core.router.rules import AnyAll, Conditions, Scope

_SCOPES: tuple[Scope, ...] = ("all", "last_user")


class TextColumn:
    """Keywords or regular expressions of one scope.

    Args:
        scope: which messages are read.
        hits: finds the numbers of what is in them.
        sets: which rules those satisfy.
    """

    __slots__ = ("_hits", "_reads_all", "scope", "sets")

    def __init__(self, scope: Scope, hits: PieceHits, sets: SetColumn[int]) -> None:
        self.scope = scope
        self.sets = sets
        self._hits = hits
        self._reads_all = scope == "all"

    def bits(self, features: RequestFeatures) -> Bits:
        pieces = features.texts if self._reads_all else features.last_user_texts
        return self.sets.bits(self._hits.find(pieces))


class Keywords:
    """The keywords of all rules, and the words that their regular expressions cannot do without."""

    def __init__(self, conditions: Sequence[Conditions]) -> None:
        words = _number(
            [
                *(word for each in conditions for word in (*each.keywords.any, *each.keywords.all)),
                *(
                    word
                    for each in conditions
                    for pattern in each.regexes
                    if (word := required_keyword(pattern))
                ),
            ]
        )
        self.numbers = words
        self._automaton = KeywordAutomaton(tuple(words))
        self.hits = PieceHits(self._automaton.find, automaton.LONGEST_TEXT)
        self.columns = tuple(
            TextColumn(
                scope,
                self.hits,
                SetColumn(
                    len(conditions),
                    {rule: [words[word] for word in each.keywords.any] for rule, each in mine},
                    {rule: [words[word] for word in each.keywords.all] for rule, each in mine},
                ),
            )
            for scope in _SCOPES
            if (mine := _of_scope(conditions, scope, _has_keywords))
        )

    def implied(self, conditions: Conditions) -> Bits:
        """The rules satisfied by every text that satisfies the keywords of `conditions`."""
        found = -1
        for column in self.columns:
            # What is in the user's last message is in the whole text, too.
            is_read = column.scope in {conditions.scope, "all"}
            found &= self._implied(column, conditions.keywords if is_read else AnyAll())
        return found

    def _implied(self, column: TextColumn, keywords: AnyAll) -> Bits:
        required: set[int] = set()
        for keyword in keywords.all:
            required |= self._automaton.find_within(keyword)
        if not keywords.any:
            return column.sets.bits(required)
        found = -1
        for keyword in keywords.any:
            found &= column.sets.bits(required | self._automaton.find_within(keyword))
        return found


class Regexes:
    """The regular expressions of all rules."""

    def __init__(self, conditions: Sequence[Conditions], keywords: Keywords) -> None:
        self._numbers = _number([pattern for each in conditions for pattern in each.regexes])
        self.columns: tuple[TextColumn, ...] = ()
        if not self._numbers:
            return
        found = RegexSet(
            tuple(self._numbers),
            {
                pattern: keywords.numbers[word]
                for pattern in self._numbers
                if (word := required_keyword(pattern))
            },
            keywords.hits.of,
        )
        hits = PieceHits(found.find, regexes.LONGEST_TEXT)
        self.columns = tuple(
            TextColumn(
                scope,
                hits,
                SetColumn(
                    len(conditions),
                    {rule: [self._numbers[each] for each in given.regexes] for rule, given in mine},
                    {},
                ),
            )
            for scope in _SCOPES
            if (mine := _of_scope(conditions, scope, _has_regexes))
        )

    def implied(self, conditions: Conditions) -> Bits:
        """The rules satisfied by every text that has one of these, as far as is certain."""
        found = -1
        for column in self.columns:
            is_read = column.scope in {conditions.scope, "all"} and conditions.regexes
            for pattern in conditions.regexes if is_read else ("",):
                number = self._numbers.get(pattern) if is_read else None
                found &= column.sets.bits(() if number is None else (number,))
        return found


def _number(given: Iterable[str]) -> Mapping[str, int]:
    return {word: number for number, word in enumerate(dict.fromkeys(given))}


def _has_keywords(conditions: Conditions) -> bool:
    return bool(conditions.keywords)


def _has_regexes(conditions: Conditions) -> bool:
    return bool(conditions.regexes)


def _of_scope(
    conditions: Sequence[Conditions], scope: Scope, has: Callable[[Conditions], bool]
) -> list[tuple[int, Conditions]]:
    return [
        (rule, each) for rule, each in enumerate(conditions) if each.scope == scope and has(each)
    ]
