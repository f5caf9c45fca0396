"""Regular expressions, for rules that ask for them with `use_regex: true`. Pure.

RE2's time is linear in the text whatever the pattern, its memory is bounded, and only the end of a
long text is looked at. One pass over a text finds the literals of all patterns first; only patterns
whose literals are there are run. Built by `table.py`; `check_regex` is asked by `routes_file.py`.
"""

from collections.abc import Sequence
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


class RegexSet:
    """Says which of its patterns are found in a text; a pattern's number is its place."""

    __slots__ = ("_filter", "patterns")

    def __init__(self, patterns: Sequence[str]) -> None:
        import re2

        self.patterns = tuple(patterns)
        self._filter = re2.Filter()
        options = _options()
        for pattern in self.patterns:
            self._filter.Add(pattern, options)
        self._filter.Compile()

    def find(self, text: str) -> Sequence[int]:
        """The numbers of the patterns in `text`."""
        return self._filter.Match(text.encode("utf-8", "replace")) or ()
