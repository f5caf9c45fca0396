"""The log ring and the pipe that fills it."""

import asyncio
import fcntl
import os

import pytest

from app.core.backends.log_ring import KEPT_LINES, LINE_BYTES, READ_BYTES, LogRing, PipeReader
from tests.fakes.fake_backends import until


def test_log_ring_is_bounded_in_lines_and_in_their_length() -> None:
    ring = LogRing()
    for n in range(KEPT_LINES + 10):
        ring.add(f"{n} ".encode() + b"x" * 2000)
    lines = ring.lines()
    assert len(lines) == KEPT_LINES
    assert lines[0].startswith("10 ")
    assert max(map(len, lines)) == LINE_BYTES


def test_log_ring_trouble_is_what_speaks_of_it_else_the_last_lines() -> None:
    ring = LogRing()
    for n in range(20):
        ring.add(f"line {n}".encode())
    assert ring.trouble()[-1] == "line 19"
    ring.add(b"error: no such tensor")
    ring.add(b"cleaning up")
    assert ring.trouble() == ("error: no such tensor",)


def test_log_ring_bytes_that_are_no_text_do_no_harm() -> None:
    ring = LogRing()
    ring.add(b"\xff\xfe failed")
    assert "failed" in ring.trouble()[0]


def test_pipe_reader_splits_lines_keeps_halves_and_ends_with_the_pipe() -> None:
    async def story() -> None:
        theirs, ours = os.pipe()
        lines: list[bytes] = []
        reader = PipeReader(theirs, lines.append)
        os.write(ours, b"one\ntw")
        await until(lambda: lines == [b"one"])
        os.write(ours, b"o\nrest")
        await until(lambda: lines == [b"one", b"two"])
        os.close(ours)
        await until(lambda: lines == [b"one", b"two", b"rest"])
        reader.close()
        reader.close()

    asyncio.run(story())


def test_pipe_reader_line_without_an_end_is_delivered_in_pieces() -> None:
    async def story() -> None:
        theirs, ours = os.pipe()
        os.set_blocking(ours, False)
        lines: list[bytes] = []
        reader = PipeReader(theirs, lines.append)
        sent = 0
        while sent < READ_BYTES:
            sent += os.write(ours, b"x" * 30_000)
            await asyncio.sleep(0)
        await until(lambda: bool(lines))
        reader.close()
        os.close(ours)
        assert sum(map(len, lines)) == sent

    asyncio.run(story())


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="pipes have one size here")
def test_pipe_reader_closed_reads_all_that_a_large_pipe_holds() -> None:
    lines: list[bytes] = []

    async def story() -> None:
        theirs, ours = os.pipe()
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, 4 * READ_BYTES)
        reader = PipeReader(theirs, lines.append)
        os.write(ours, b"x" * (3 * READ_BYTES - 1) + b"\nlast words\n")
        reader.close()
        os.close(ours)

    asyncio.run(story())
    assert lines[-1] == b"last words"
