"""The splice: a worker's answer carried to the client, with back-pressure both ways."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from app.core.router.http_types import ClientGoneError, Exchange
from app.core.router.splice import AnswerStream
from app.core.router.wire import Wire
from app.core.router.worker_client import BreakPoint, WorkerBroke, WorkerClient, WorkerResponse
from tests.fakes.http_routed import routed, worker_that
from tests.fakes.http_serving import connected, get, post, run, serving, status_of, until

FRAME = b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"x"}}]}\n\n'
LAST = b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}]}\n\ndata: [DONE]\n\n'
SSE = ((b"content-type", b"text/event-stream"),)


def test_stream_passes_untouched_and_is_counted() -> None:
    async def worker(exchange: Exchange) -> None:
        exchange.start(200, SSE)
        for _ in range(50):
            await exchange.write(FRAME)
        await exchange.write(LAST)
        exchange.finish()

    async def test() -> None:
        async with routed(worker) as (front, behind, _), connected(front.port) as client:
            for _ in range(2):
                client.send(post(front.port, b'{"stream":true}'))
                head = await client.head()
                assert b"content-type: text/event-stream\r\n" in head
                body = b""
                while size := int(await client.reader.readline(), 16):
                    body += await client.reader.readexactly(size)
                    await client.reader.readexactly(2)
                await client.reader.readexactly(2)
                assert body == FRAME * 50 + LAST
            assert behind.connections == 1

    run(test())


def test_whole_answer_keeps_its_status_and_body() -> None:
    async def worker(exchange: Exchange) -> None:
        exchange.send(201, b'{"n":1}', ((b"content-type", b"application/json; charset=utf-8"),))

    async def test() -> None:
        async with routed(worker) as (front, _, _), connected(front.port) as client:
            client.send(post(front.port, b"{}"))
            answer = await client.answer()
            assert status_of(answer) == 201
            assert b"charset=utf-8" in answer
            assert answer.endswith(b'{"n":1}')

    run(test())


def test_client_that_leaves_closes_the_workers_connection() -> None:
    gone = asyncio.Event()

    async def worker(exchange: Exchange) -> None:
        exchange.start(200, SSE)
        try:
            while True:
                await exchange.write(FRAME)
                await asyncio.sleep(0.001)
        finally:
            gone.set()

    async def test() -> None:
        async with routed(worker) as (front, behind, _):
            async with connected(front.port) as client:
                client.send(post(front.port, b'{"stream":true}'))
                await client.reader.readexactly(2000)
            await gone.wait()
            await until(lambda: behind.connections == 0)

    run(test())


def test_slow_client_holds_the_worker_back_and_then_gets_all() -> None:
    pieces, big = 300, b"data: " + b"y" * 60_000 + b"\n\n"
    written = 0

    async def worker(exchange: Exchange) -> None:
        nonlocal written
        exchange.start(200, SSE)
        for _ in range(pieces):
            await exchange.write(big)
            written += 1
        await exchange.write(LAST)
        exchange.finish()

    async def test() -> None:
        async with routed(worker) as (front, _, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", front.port, limit=1 << 16)
            writer.write(post(front.port, b'{"stream":true}'))
            await until(lambda: written > 0)
            before = -1
            while before != written:
                before = written
                await asyncio.sleep(0.2)
            assert written < pieces
            body = b""
            while b"[DONE]" not in body[-200:]:
                piece = await reader.read(1 << 20)
                assert piece
                body += piece
            assert body.count(b"y") >= pieces * 60_000
            writer.close()

    run(test())


@pytest.mark.parametrize(
    ("frames", "expected"),
    [(0, "reset"), (3, "event")],
)
def test_stream_that_breaks_is_never_ended_cleanly(frames: int, expected: str) -> None:
    async def worker(exchange: Exchange) -> None:
        exchange.start(200, SSE)
        exchange.flush()
        for _ in range(frames):
            await exchange.write(FRAME)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.02)
        exchange.abort()

    async def test() -> None:
        async with routed(worker) as (front, _, _), connected(front.port) as client:
            client.send(post(front.port, b'{"stream":true}'))
            if expected == "reset":
                assert await client.is_reset()
            else:
                answer = await client.rest()
                assert answer.count(FRAME) == frames
                assert b"503 service unavailable" in answer
                assert not answer.endswith(b"0\r\n\r\n")

    run(test())


def test_stream_that_ends_without_its_last_event_counts_as_broken() -> None:
    async def worker(exchange: Exchange) -> None:
        exchange.start(200, SSE)
        await exchange.write(FRAME)
        exchange.finish()

    async def test() -> None:
        async with routed(worker) as (front, _, _), connected(front.port) as client:
            client.send(post(front.port, b'{"stream":true}'))
            answer = await client.rest()
            assert b"before it was complete" in answer
            assert not answer.endswith(b"0\r\n\r\n")

    run(test())


def test_worker_that_dies_before_its_head_is_a_503() -> None:
    async def worker(exchange: Exchange) -> None:
        exchange.abort()

    async def test() -> None:
        async with routed(worker) as (front, _, _), connected(front.port) as client:
            client.send(post(front.port, b"{}", "/v1/messages"))
            answer = await client.answer()
            assert status_of(answer) == 503
            assert b"retry-after: 15" in answer
            assert b"overloaded_error" in answer

    run(test())


@pytest.mark.parametrize(
    ("wire", "event"),
    [
        (Wire.CHAT, b'"delta":{}'),
        (Wire.RESPONSES, b"event: response.in_progress"),
        (Wire.MESSAGES, b"event: ping"),
    ],
)
def test_silence_is_filled_with_events_of_the_wire(wire: Wire, event: bytes) -> None:
    async def handler(exchange: Exchange) -> None:
        stream = AnswerStream(exchange, wire, "m", keepalive_s=0.03)
        stream.open()
        await exchange.client_gone

    async def test() -> None:
        async with serving(handler) as front, connected(front.port) as client:
            client.send(get(front.port))
            await client.reader.readuntil(event)
            await client.reader.readuntil(event)

    run(test())


def test_limit_of_ours_ends_the_answer_cleanly_and_stops_the_worker() -> None:
    gone = asyncio.Event()

    async def worker(exchange: Exchange) -> None:
        exchange.start(200, SSE)
        try:
            while True:
                await exchange.write(FRAME)
                await asyncio.sleep(0.001)
        finally:
            gone.set()

    async def test() -> None:
        async with serving(worker) as behind:
            pool = WorkerClient("127.0.0.1", behind.port)
            seen = 0

            def count(_frame: bytes) -> str | None:
                nonlocal seen
                seen += 1
                return "length" if seen == 5 else None

            async def handler(exchange: Exchange) -> None:
                stream = AnswerStream(exchange, Wire.CHAT, "m", on_frame=count)
                await stream.carry(await pool.request("POST", "/", b"{}"))
                assert stream.stats.tokens == 5

            async with serving(handler) as front, connected(front.port) as client:
                client.send(post(front.port, b"{}"))
                answer = await client.reader.readuntil(b"0\r\n\r\n")
                assert answer.count(FRAME) == 5
                assert b'"finish_reason":"length"' in answer
                assert b"data: [DONE]\n\n" in answer
                await gone.wait()
            pool.close()

    run(test())


def test_pieces_from_elsewhere_are_carried_the_same() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (FRAME[:20], FRAME[20:], LAST):
            yield piece

    async def handler(exchange: Exchange) -> None:
        stream = AnswerStream(exchange, Wire.CHAT, "m")
        await stream.carry_pieces(pieces())
        assert stream.stats.tokens == 1
        with pytest.raises(ClientGoneError):
            exchange.write_nowait(b"after the end")

    async def test() -> None:
        async with serving(handler) as front, connected(front.port) as client:
            client.send(get(front.port))
            assert (await client.reader.readuntil(b"0\r\n\r\n")).count(b"data: ") == 3

    run(test())


def test_whole_answer_is_handed_on_before_anybody_wakes() -> None:
    async def worker(exchange: Exchange) -> None:
        size = int(exchange.request.body)
        if exchange.request.path == "/chunked":
            exchange.start(200)
            for _ in range(4):
                await exchange.write(b"x" * (size // 4))
            exchange.finish()
        else:
            exchange.send(200, b"x" * size)

    async def test() -> None:
        async with serving(worker) as server:
            client = WorkerClient("127.0.0.1", server.port)
            handed: list[bytes | None] = []

            def take(response: WorkerResponse) -> None:
                handed.append(response.take())

            for path, size in (("/whole", 600), ("/whole", 100_000), ("/chunked", 600)):
                body = b"%d" % size
                response = await client.request("POST", path, body, on_whole=take)
                await response.arrived()
                assert handed.pop() == b"x" * size
            # Whoever reads it himself is the only one to get it.
            response = await client.request("POST", "/whole", b"4000000", on_whole=take)
            assert not response.is_complete
            response.on_whole = None
            assert len(await response.read()) == 4_000_000
            assert handed == []
            client.close()

    run(test())


def test_answer_that_breaks_is_not_handed_on() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def test() -> None:
        async with worker_that(half) as port:
            client = WorkerClient("127.0.0.1", port)
            handed: list[WorkerResponse] = []
            response = await client.request("GET", "/", on_whole=handed.append)
            with pytest.raises(WorkerBroke) as caught:
                await response.arrived()
            assert caught.value.point is BreakPoint.MID_BODY
            assert handed == []
            client.close()

    run(test())
