"""Bitmaps of rules, one column for each kind of condition. Pure; the parts of `table.py`.

Bit i of a bitmap stands for rule i. A column answers for a request's value which rules have nothing
against it: those whose condition it satisfies, and those without such a condition (`base`). The
bitmaps are Python integers; an AND of 5,000 bits takes 0.1 us.

A column also answers `implied`: which rules have nothing against *every* request that another rule's
condition lets through. Lint finds shadowed rules with it.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from app.core.router.patterns import fits, is_glob, prefix_of, to_re2

Bits = int
T = TypeVar("T", bound=Hashable)

# A client may send any name; remembered ones stay few, and short.
_REMEMBERED_VALUES = 2048
_LONGEST_VALUE = 256
# A set of globs is matched by states made as they are needed; for texts this short they stay far
# below this bound, so that the set never gives up.
_GLOB_MEMORY_BYTES = 64 << 20


def everything(rules: int) -> Bits:
    return (1 << rules) - 1


class ValueColumn:
    """Patterns for one text: path, model, header, session.

    Args:
        rules: how many there are.
        conditions: patterns by rule, of which one has to fit; a pattern None fits an absent value.
        fold: compare without regard to case.
    """

    __slots__ = (
        "_base",
        "_exact",
        "_fold",
        "_glob_bits",
        "_globs",
        "_lengths",
        "_prefixes",
        "_seen",
    )

    def __init__(
        self, rules: int, conditions: Mapping[int, Iterable[str | None]], *, fold: bool
    ) -> None:
        self._fold = fold
        self._seen: dict[str | None, Bits] = {}
        self._exact: dict[str | None, Bits] = {}
        self._prefixes: dict[str, Bits] = {}
        globs: dict[str, Bits] = {}
        with_condition = 0
        for rule, patterns in conditions.items():
            bit = 1 << rule
            with_condition |= bit
            for given in patterns:
                pattern = given.casefold() if fold and given is not None else given
                prefix = None if pattern is None else prefix_of(pattern)
                if prefix is not None:
                    self._prefixes[prefix] = self._prefixes.get(prefix, 0) | bit
                elif pattern is not None and is_glob(pattern):
                    globs[pattern] = globs.get(pattern, 0) | bit
                else:
                    self._exact[pattern] = self._exact.get(pattern, 0) | bit
        self._base = everything(rules) & ~with_condition
        self._lengths = tuple(sorted({len(prefix) for prefix in self._prefixes}))
        self._glob_bits = globs
        self._globs = _match_any(tuple(globs))

    def bits(self, value: str | None) -> Bits:
        found = self._seen.get(value)
        if found is not None:
            return found
        found = self._look_up(value.casefold() if self._fold and value is not None else value)
        if value is None or len(value) <= _LONGEST_VALUE:
            if len(self._seen) >= _REMEMBERED_VALUES:
                self._seen.clear()
            self._seen[value] = found
        return found

    def implied(self, patterns: Sequence[str | None]) -> Bits:
        if not patterns:
            return self._base
        found = -1
        for given in patterns:
            pattern = given.casefold() if self._fold and given is not None else given
            if pattern is None or not is_glob(pattern):
                found &= self._look_up(pattern)
                continue
            # What begins a glob, up to its first special character, is shared by all that fits it.
            stem = pattern.replace("?", "*").partition("*")[0]
            found &= self._base | self._under_prefixes(stem) | self._glob_bits.get(pattern, 0)
        return found

    def _look_up(self, value: str | None) -> Bits:
        found = self._base | self._exact.get(value, 0)
        if value is not None:
            found |= self._under_prefixes(value)
            for pattern in self._globs(value):
                found |= self._glob_bits[pattern]
        return found

    def _under_prefixes(self, value: str) -> Bits:
        found = 0
        for length in self._lengths:
            if length > len(value):
                break
            found |= self._prefixes.get(value[:length], 0)
        return found


class SetColumn(Generic[T]):
    """Conditions on a set: any of these, all of those. Tags, and keywords by number.

    The k-th member that a rule requires has a place of its own, so `all` costs as many ANDs as the
    longest list has members, however many rules there are.
    """

    __slots__ = ("_none", "_places")

    def __init__(
        self, rules: int, any_of: Mapping[int, Iterable[T]], all_of: Mapping[int, Iterable[T]]
    ) -> None:
        places: list[dict[int, list[T]]] = [
            {rule: members for rule, given in any_of.items() if (members := list(given))}
        ]
        for rule, required in all_of.items():
            for place, member in enumerate(required, start=1):
                if place == len(places):
                    places.append({})
                places[place][rule] = [member]
        self._places = tuple(
            (everything(rules) & ~_bits_of(place), _by_member(place)) for place in places if place
        )
        self._none = everything(rules)
        for base, _ in self._places:
            self._none &= base

    def bits(self, members: Collection[T]) -> Bits:
        if not members:
            return self._none
        found = -1
        for base, by_member in self._places:
            fitting = base
            for member in members:
                more = by_member.get(member)
                if more is not None:
                    fitting |= more
            found &= fitting
        return found

    def implied(self, any_of: Sequence[T], all_of: Sequence[T]) -> Bits:
        found = -1
        for member in any_of:
            found &= self.bits((member, *all_of))
        return found if any_of else self.bits(all_of)


class RangeColumn:
    """A number between two bounds, both included: one bitmap for each stretch between bounds."""

    __slots__ = ("_bits", "_starts")

    def __init__(self, rules: int, bounds: Mapping[int, tuple[int | None, int | None]]) -> None:
        opens: dict[int, Bits] = {}
        closes: dict[int, Bits] = {}
        current = everything(rules)
        for rule, (low, high) in bounds.items():
            bit = 1 << rule
            if low is not None and high is not None and low > high:
                current &= ~bit
                continue
            if low is not None and low > 0:
                current &= ~bit
                opens[low] = opens.get(low, 0) | bit
            if high is not None:
                closes[high + 1] = closes.get(high + 1, 0) | bit
        starts, bits = [0], [current]
        for start in sorted(opens.keys() | closes.keys()):
            current = (current | opens.get(start, 0)) & ~closes.get(start, 0)
            starts.append(start)
            bits.append(current)
        self._starts = starts
        self._bits = bits

    def bits(self, value: int) -> Bits:
        return self._bits[bisect_right(self._starts, value) - 1]

    def implied(self, low: int | None, high: int | None) -> Bits:
        # An interval holds another where it holds both of its ends.
        top = self._bits[-1] if high is None else self.bits(high)
        return self.bits(low or 0) & top


class FlagColumn:
    """Yes-or-no conditions, looked up together: one bitmap for each combination of answers.

    Args:
        rules: how many there are.
        wanted: by rule, for each flag in order: True, False, or None for either.
        flags: how many flags.
    """

    __slots__ = ("_bits",)

    def __init__(self, rules: int, wanted: Mapping[int, Sequence[bool | None]], flags: int) -> None:
        self._bits = [everything(rules)] * (1 << flags)
        for rule, answers in wanted.items():
            bit = 1 << rule
            for index in range(1 << flags):
                if not _agrees(index, answers):
                    self._bits[index] &= ~bit

    def bits(self, index: int) -> Bits:
        """For flags packed into a number, the first flag in the lowest bit."""
        return self._bits[index]

    def implied(self, answers: Sequence[bool | None]) -> Bits:
        found = -1
        for index, bits in enumerate(self._bits):
            if _agrees(index, answers):
                found &= bits
        return found


def _agrees(index: int, answers: Sequence[bool | None]) -> bool:
    return all(
        answer is None or answer == bool(index >> place & 1) for place, answer in enumerate(answers)
    )


def _bits_of(rules: Iterable[int]) -> Bits:
    found = 0
    for rule in rules:
        found |= 1 << rule
    return found


def _by_member(place: Mapping[int, Iterable[T]]) -> dict[T, Bits]:
    found: dict[T, Bits] = {}
    for rule, members in place.items():
        for member in members:
            found[member] = found.get(member, 0) | 1 << rule
    return found


def _match_any(patterns: tuple[str, ...]) -> Callable[[str], Iterable[str]]:
    """Which of many patterns fit a text, found in one pass."""
    if not patterns:
        return lambda _value: ()
    import re2

    options = re2.Options()
    options.max_mem = _GLOB_MEMORY_BYTES
    options.log_errors = False
    matcher = re2.Set.FullMatchSet(options)
    for pattern in patterns:
        matcher.Add(to_re2(pattern))
    matcher.Compile()

    def match(value: str) -> list[str]:
        if len(value) > _LONGEST_VALUE:
            return [pattern for pattern in patterns if fits(pattern, value)]
        found = matcher.Match(value.encode("utf-8", "replace"))
        return [patterns[index] for index in found or ()]

    return match
