"""Patterns with `*` and `?`, as rules use them for models, headers and sessions. Pure.

Used by the compiled table (many at once), by the interpreter that explains (one at a time) and by
lint.
"""

from functools import lru_cache


def is_glob(pattern: str) -> bool:
    return "*" in pattern or "?" in pattern


def prefix_of(pattern: str) -> str | None:
    """What stands before the star where that is the pattern's only special character."""
    if pattern.endswith("*") and not is_glob(pattern[:-1]):
        return pattern[:-1]
    return None


def to_re2(pattern: str) -> str:
    """The pattern as an RE2 expression for the whole text."""
    import re2

    pieces = {"*": r"(?s:.*)", "?": r"(?s:.)"}
    return "".join(pieces.get(character) or re2.escape(character) for character in pattern)


@lru_cache(maxsize=1024)
def _steps(pattern: str) -> tuple[str, ...]:
    return tuple(pattern.split("*"))


def fits(pattern: str, value: str) -> bool:
    """Whether the whole of `value` fits, in time linear in it for each star."""
    if not is_glob(pattern):
        return pattern == value
    pieces = _steps(pattern)
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return len(first) == len(value) and _fits_at(first, value, 0)
    if len(value) < len(first) + len(last):
        return False
    if not _fits_at(first, value, 0) or not _fits_at(last, value, len(value) - len(last)):
        return False
    at, end = len(first), len(value) - len(last)
    for piece in pieces[1:-1]:
        while at + len(piece) <= end and not _fits_at(piece, value, at):
            at += 1
        if at + len(piece) > end:
            return False
        at += len(piece)
    return True


def _fits_at(piece: str, value: str, at: int) -> bool:
    if "?" not in piece:
        return value.startswith(piece, at)
    return at + len(piece) <= len(value) and all(
        wanted in ("?", value[at + offset]) for offset, wanted in enumerate(piece)
    )
