"""The one seam for translated words: `tr` around each sentence that people read. Pure, any thread."""

from collections.abc import Mapping

_words: Mapping[str, str] = {}


def tr(text: str) -> str:
    """`text` in the language in use; itself where there is no translation."""
    return _words.get(text, text)


def use(words: Mapping[str, str]) -> None:
    """Takes `words` (English sentence to its translation); called before anything is shown."""
    global _words
    _words = dict(words)
