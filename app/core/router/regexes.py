"""Regular expressions, for rules that ask for them with `use_regex: true`. Pure.

RE2's time is linear in the text whatever the pattern, its memory is bounded, and only the end of a
long text is looked at. Most patterns cannot match without some plain word; those words are looked for
together with the keywords, and such a pattern is run only where its word is. Built by `table.py`;
`check_regex` is asked by `entries.py`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

# Of a longer text the end is looked at.
LONGEST_TEXT = 64 * 1024
# Of one pattern's program and states; what needs more is refused when the file is read.
_PATTERN_MEMORY_BYTES = 2 << 20


def _options() -> Any:
    import re2

    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    return options


def check_regex(pattern: str) -> str:
    """Why RE2 cannot take `pattern`; empty when it can."""
    import re2

    try:
        re2.compile(pattern, _options())
    except re2.error as error:
        reason = error.args[0] if error.args else "not a regular expression"
        return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return ""


def search(pattern: str, text: str) -> bool:
    """Whether one pattern is found in `text`."""
    import re2

    haystack = text.encode("utf-8", "replace")
    return re2.compile(pattern, _options()).search(haystack) is not None


def required_keyword(pattern: str) -> str:
    r"""A keyword that is in every ASCII text in which `pattern` is found; empty where none is certain.

    Only plain letters before the first group, class or alternative count. An end is closed where the
    pattern has `\b` there: `\bdeploy\s+prod` cannot do without `deploy*`.
    """
    if "|" in pattern or "\\Q" in pattern:
        return ""
    best, word, opening = "", "", "*"
    at = flags.end() if (flags := _FLAGS.match(pattern)) else 0
    # A step beyond the end, so that the last word is counted like the others.
    while at <= len(pattern):
        character = pattern[at : at + 1]
        if character.isascii() and character.isalnum():
            word += character
            at += 1
            continue
        if character and character in "*?{":
            # The letter before it may be missing.
            word = word[:-1]
        is_edge = _EDGE.match(pattern, at) is not None
        if len(word) > max(len(best.strip("*")), _SHORTEST_WORD - 1):
            best = opening + word + ("" if is_edge else "*")
        word, opening = "", "" if is_edge else "*"
        step = _STEP.match(pattern, at)
        if step is None:
            break
        at = step.end()
    return best.lower()


_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)")
# What may stand between words: an escape without argument, a repeat, an anchor, other plain characters.
# Groups, classes and all other escapes end the search.
_STEP = re.compile(r"\\(?:[dDsSwWbB]|[^a-zA-Z0-9])|\{[0-9]*,?[0-9]*\}|[^\\{(\[]")
_EDGE = re.compile(r"\\b(?![*+?{])")
_SHORTEST_WORD = 4


class RegexSet:
    """Says which of its patterns are found in a text; a pattern's number is its place.

    Args:
        patterns: all of them.
        words: for a pattern, the number of a word that it cannot do without.
        words_of: the numbers of such words in a text.
    """

    __slots__ = ("_all", "_by_word", "_wordless", "_words_of")

    def __init__(
        self,
        patterns: Sequence[str],
        words: Mapping[str, int],
        words_of: Callable[[str], frozenset[int]],
    ) -> None:
        import re2

        self._words_of = words_of
        self._all = _Filter(range(len(patterns)), patterns)
        rest = [number for number, pattern in enumerate(patterns) if pattern not in words]
        self._wordless = _Filter(rest, [patterns[number] for number in rest]) if rest else None
        self._by_word: dict[int, list[tuple[int, Any]]] = {}
        for number, pattern in enumerate(patterns):
            if pattern in words:
                compiled = re2.compile(pattern, _options())
                self._by_word.setdefault(words[pattern], []).append((number, compiled))

    def find(self, text: str) -> Collection[int]:
        """The numbers of the patterns in `text`."""
        # Folding may join what a pattern sees apart, but not in plain ASCII.
        if not text.isascii():
            return self._all.find(text)
        found = [] if self._wordless is None else self._wordless.find(text)
        for word in self._words_of(text):
            for number, compiled in self._by_word.get(word, ()):
                if compiled.search(text) is not None:
                    found.append(number)
        return found


class _Filter:
    """Patterns without a known word: one pass finds their literals, and few of them are run."""

    __slots__ = ("_match", "_numbers")

    def __init__(self, numbers: Sequence[int], patterns: Sequence[str]) -> None:
        import re2

        self._numbers = tuple(numbers)
        filtered = re2.Filter()
        options = _options()
        for pattern in patterns:
            filtered.Add(pattern, options)
        filtered.Compile()
        self._match = filtered.Match

    def find(self, text: str) -> list[int]:
        found = self._match(text.encode("utf-8", "replace")) or ()
        return [self._numbers[index] for index in found]
