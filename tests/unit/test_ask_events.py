"""`coolhead ask`: what comes of a stream that breaks."""

from collections.abc import Iterator

import pytest

from app.cli.ask import _events
from app.core.errors import CoolheadError


def broken() -> Iterator[bytes]:
    yield b'data: {"choices": []}\n'
    yield b": a comment\n"
    raise ConnectionResetError(104, "Connection reset by peer")


def test_ask_stream_that_is_reset_ends_in_words() -> None:
    events = _events(broken())
    assert next(events) == {"choices": []}
    with pytest.raises(CoolheadError, match="coolhead events"):
        next(events)
