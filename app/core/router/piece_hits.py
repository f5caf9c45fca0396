"""What was found in each piece of a text, remembered by the piece's hash. Pure; a part of `table.py`.

A message is a piece. An agent sends all that was said before with every turn, so most pieces have been
searched: a turn of 100 kB costs the hashes of its messages and one search of the newest.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

_MOST_REMEMBERED = 8192
_NONE: frozenset[int] = frozenset()


def tail(pieces: Sequence[str], longest: int) -> Iterator[str]:
    """The last `longest` characters of the pieces, last piece first, a newline between two counted."""
    left = longest
    for piece in reversed(pieces):
        yield piece if len(piece) <= left else piece[-left:]
        left -= len(piece) + 1
        if left <= 0:
            return


class PieceHits:
    """Which of many numbered things are in a text.

    Args:
        find: searches one piece.
        longest: of a longer text its end is searched; in characters.
    """

    __slots__ = ("_find", "_longest", "_seen")

    def __init__(self, find: Callable[[str], Iterable[int]], longest: int) -> None:
        self._find = find
        self._longest = longest
        # By hash, so that no prompt is kept: 64 bits, seeded anew by each process.
        self._seen: dict[int, frozenset[int]] = {}

    def find(self, pieces: Sequence[str]) -> frozenset[int]:
        hits = _NONE
        for piece in tail(pieces, self._longest):
            found = self.of(piece)
            if found:
                hits = hits | found if hits else found
        return hits

    def of(self, piece: str) -> frozenset[int]:
        """What is in one piece."""
        key = hash(piece)
        found = self._seen.get(key)
        return self._search(key, piece) if found is None else found

    def _search(self, key: int, piece: str) -> frozenset[int]:
        hits = self._find(piece)
        found = frozenset(hits) if hits else _NONE
        if len(self._seen) >= _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[key] = found
        return found
