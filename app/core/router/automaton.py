"""All keywords of all rules, found in one pass over a text (Aho-Corasick). Pure.

Built by `table.py`; the text is folded once (NFC, case folded) and scanned as UTF-8, which is safe
because no character's bytes begin inside another's. A keyword has to stand alone: `code` is not in
`decode`. That holds only for scripts that put spaces between words; in Chinese, Japanese, Korean, Thai and
the like a keyword is found anywhere. `*` at an end opens that end: `optimi*`.
"""

import unicodedata
from collections.abc import Mapping, Sequence

# A table of all transitions is the fastest, and costs up to 1 kB for each byte of the keywords:
# above this many bytes (32 MiB of table) the compact automaton is used, a quarter slower.
_LARGEST_DFA_BYTES = 32 * 1024

# Of a longer text the end is looked at: 60,000 tokens or so, and 2 ms on the core loop.
LONGEST_TEXT = 256 * 1024

_LEFT, _RIGHT = 1, 2
# A letter that no keyword has, for an end where a word may go on.
_ANY_LETTER = "\u01c2"
_ASCII_WORD = bytes(
    48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte == 95 for byte in range(256)
)

# Scripts without spaces between words, or whose words take endings without one.
_UNSPACED = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1100, 0x11FF),  # Hangul Jamo
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0xA4CF),  # CJK, kana, Yi
    (0xA960, 0xA97F),  # Hangul
    (0xAC00, 0xD7FF),  # Hangul
    (0xF900, 0xFAFF),  # CJK compatibility
    (0xFF66, 0xFFDC),  # half-width kana and Hangul
    (0x1B000, 0x1B16F),  # kana
    (0x20000, 0x3FFFF),  # CJK
)


def fold(text: str) -> str:
    """The form that keywords are compared in."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.casefold()


def is_word_character(character: str) -> bool:
    """Whether `character` joins the word beside it, so that no keyword ends there."""
    if character.isascii():
        return character.isalnum() or character == "_"
    point = ord(character)
    if any(first <= point <= last for first, last in _UNSPACED):
        return False
    return unicodedata.category(character)[0] in "LNM"


class KeywordAutomaton:
    """Says which of its keywords are in a text.

    Args:
        keywords: as the user wrote them; a keyword's number is its place here.
    """

    __slots__ = ("_ascii", "_whole", "keywords")

    def __init__(self, keywords: Sequence[str]) -> None:
        self.keywords = tuple(keywords)
        # The same letters may be asked for with open and with closed ends: one pattern, two numbers.
        patterns: dict[str, list[_Asked]] = {}
        for number, keyword in enumerate(self.keywords):
            stem, ends = _stem(keyword)
            patterns.setdefault(stem, []).append((number, ends))
        self._whole = _Automaton(patterns)
        # Fewer kinds of bytes make a smaller table: a quarter off the time, for text in English and
        # in code, where some keywords are in other scripts.
        english = {stem: asked for stem, asked in patterns.items() if stem.isascii()}
        self._ascii = self._whole if len(english) == len(patterns) else _Automaton(english)

    def find(self, text: str) -> set[int]:
        """The numbers of the keywords in `text`."""
        automaton = self._ascii if text.isascii() else self._whole
        return automaton.find(fold(text).encode("utf-8", "replace"))

    def find_within(self, keyword: str) -> set[int]:
        """The numbers of the keywords that are in every text that `keyword` is in."""
        stem, ends = _stem(keyword)
        before = " " if ends & _LEFT else _ANY_LETTER
        after = " " if ends & _RIGHT else _ANY_LETTER
        return self.find(before + stem + after)


# A keyword's number, and which of its ends need a word's edge.
_Asked = tuple[int, int]


class _Automaton:
    __slots__ = ("_asked", "_search")

    def __init__(self, patterns: Mapping[str, Sequence[_Asked]]) -> None:
        import ahocorasick_rs

        stems = [stem.encode("utf-8", "replace") for stem in patterns]
        kinds = ahocorasick_rs.Implementation
        is_small = sum(map(len, stems)) <= _LARGEST_DFA_BYTES
        self._asked = tuple(map(tuple, patterns.values()))
        self._search = ahocorasick_rs.BytesAhoCorasick(
            stems, implementation=kinds.DFA if is_small else kinds.ContiguousNFA
        ).find_matches_as_indexes

    def find(self, haystack: bytes) -> set[int]:
        found: set[int] = set()
        for pattern, start, end in self._search(haystack, overlapping=True):
            for number, ends in self._asked[pattern]:
                if number not in found and not (
                    (ends & _LEFT and _joins_before(haystack, start))
                    or (ends & _RIGHT and _joins_after(haystack, end))
                ):
                    found.add(number)
        return found


def _stem(keyword: str) -> tuple[str, int]:
    """The folded keyword without stars, and which of its ends need a word's edge."""
    stem = fold(keyword)
    open_left, open_right = stem.startswith("*"), stem.endswith("*")
    stem = stem.strip("*")
    ends = 0
    if stem and not open_left and is_word_character(stem[0]):
        ends |= _LEFT
    if stem and not open_right and is_word_character(stem[-1]):
        ends |= _RIGHT
    return stem, ends


def _joins_before(haystack: bytes, start: int) -> bool:
    if start == 0:
        return False
    byte = haystack[start - 1]
    if byte < 128:
        return bool(_ASCII_WORD[byte])
    first = start - 1
    while haystack[first] & 0xC0 == 0x80:
        first -= 1
    return is_word_character(haystack[first:start].decode())


def _joins_after(haystack: bytes, end: int) -> bool:
    if end == len(haystack):
        return False
    byte = haystack[end]
    if byte < 128:
        return bool(_ASCII_WORD[byte])
    last = end + 1
    while last < len(haystack) and haystack[last] & 0xC0 == 0x80:
        last += 1
    return is_word_character(haystack[end:last].decode())
