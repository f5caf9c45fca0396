"""Columns for conditions that read text: the costly ones, asked last. Pure; parts of `table.py`."""

from collections.abc import Mapping, Sequence

from app.core.router.automaton import KeywordAutomaton
from app.core.router.columns import Bits, SetColumn
from app.core.router.regexes import RegexSet
from app.core.router.rules import AnyAll


class KeywordColumn:
    """Keywords of all rules of one scope; one pass of one automaton."""

    __slots__ = ("_automaton", "_numbers", "_sets")

    def __init__(self, rules: int, conditions: Mapping[int, AnyAll]) -> None:
        self._numbers: dict[str, int] = {}
        any_of, all_of = (
            {
                rule: [self._numbers.setdefault(word, len(self._numbers)) for word in words]
                for rule, words in side.items()
            }
            for side in (
                {rule: given.any for rule, given in conditions.items() if given.any},
                {rule: given.all for rule, given in conditions.items() if given.all},
            )
        )
        self._sets: SetColumn[int] = SetColumn(rules, any_of, all_of)
        self._automaton = KeywordAutomaton(tuple(self._numbers))

    def bits(self, text: str) -> Bits:
        return self._sets.bits(self._automaton.find(text))

    def implied(self, keywords: AnyAll) -> Bits:
        """Rules satisfied by every text that satisfies `keywords`."""
        required: set[int] = set()
        for keyword in keywords.all:
            required |= self._automaton.find_within(keyword)
        found = self._sets.bits(required) if not keywords.any else -1
        for keyword in keywords.any:
            found &= self._sets.bits(required | self._automaton.find_within(keyword))
        return found


class RegexColumn:
    """Regular expressions of all rules of one scope."""

    __slots__ = ("_numbers", "_regexes", "_sets")

    def __init__(self, rules: int, conditions: Mapping[int, Sequence[str]]) -> None:
        self._numbers: dict[str, int] = {}
        any_of = {
            rule: [self._numbers.setdefault(pattern, len(self._numbers)) for pattern in patterns]
            for rule, patterns in conditions.items()
        }
        self._sets: SetColumn[int] = SetColumn(rules, any_of, {})
        self._regexes = RegexSet(tuple(self._numbers))

    def bits(self, text: str) -> Bits:
        return self._sets.bits(self._regexes.find(text))

    def implied(self, patterns: Sequence[str]) -> Bits:
        """Rules satisfied by every text that one of `patterns` is found in, as far as is certain."""
        if not patterns:
            return self._sets.bits(())
        found = -1
        for pattern in patterns:
            number = self._numbers.get(pattern)
            found &= self._sets.bits(() if number is None else (number,))
        return found
