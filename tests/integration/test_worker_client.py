"""The worker client against a scripted worker, on real sockets."""

import asyncio

import pytest

from app.core.router.http_types import Exchange
from app.core.router.worker_client import BreakPoint, WorkerBroke, WorkerClient
from tests.fakes.http_routed import worker_that
from tests.fakes.http_serving import run, serving, until


def test_request_reaches_the_worker_with_key_and_body_and_the_connection_is_reused() -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def worker(exchange: Exchange) -> None:
        seen.append((exchange.request.header(b"authorization"), exchange.request.body))
        exchange.send(200, b'{"ok":1}')

    async def test() -> None:
        async with serving(worker) as server:
            client = WorkerClient("127.0.0.1", server.port, "k")
            for _ in range(5):
                response = await client.request("POST", "/v1/x?y=1", b"{}")
                assert response.status == 200
                assert await response.read() == b'{"ok":1}'
            assert seen == [(b"Bearer k", b"{}")] * 5
            assert server.connections == 1
            client.close()

    run(test())


def test_idle_connections_are_few_however_many_ran() -> None:
    gate = asyncio.Event()

    async def worker(exchange: Exchange) -> None:
        await gate.wait()
        exchange.send(200, b"{}")

    async def test() -> None:
        async with serving(worker) as server:
            client = WorkerClient("127.0.0.1", server.port, max_idle=2)

            async def ask() -> None:
                await (await client.request("GET", "/")).read()

            asking = [asyncio.create_task(ask()) for _ in range(8)]
            await until(lambda: server.connections == 8)
            gate.set()
            await asyncio.gather(*asking)
            await until(lambda: server.connections == 2)
            client.close()

    run(test())


def test_stale_connection_is_replaced_before_any_byte() -> None:
    accepted = 0

    async def one_answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await reader.readuntil(b"\r\n\r\n")
        # The second request on a connection is never answered: it was stale.

    async def test() -> None:
        async with worker_that(one_answer_each) as port:
            client = WorkerClient("127.0.0.1", port)
            for _ in range(3):
                response = await client.request("GET", "/")
                assert await response.read() == b"{}"
            assert accepted == 3
            client.close()

    run(test())


def test_connect_that_fails_says_so() -> None:
    async def test() -> None:
        async with worker_that(lambda _r, _w: asyncio.sleep(0)) as port:
            pass
        client = WorkerClient("127.0.0.1", port)
        with pytest.raises(WorkerBroke) as caught:
            await client.request("GET", "/")
        assert caught.value.point is BreakPoint.CONNECT
        client.close()
        with pytest.raises(WorkerBroke):
            await client.request("GET", "/")

    run(test())


@pytest.mark.parametrize(
    ("said", "point"),
    [
        (b"", BreakPoint.BEFORE_HEADERS),
        (b"HTTP/1.1 200 OK\r\nContent-Le", BreakPoint.BEFORE_HEADERS),
        (b"nonsense\r\n\r\n", BreakPoint.BEFORE_HEADERS),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", BreakPoint.MID_BODY),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", BreakPoint.MID_BODY),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", BreakPoint.MID_BODY),
    ],
)
def test_break_is_told_by_how_far_it_had_come(said: bytes, point: BreakPoint) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        await writer.drain()
        await asyncio.sleep(0.05)

    async def test() -> None:
        async with worker_that(talk) as port:
            client = WorkerClient("127.0.0.1", port)
            with pytest.raises(WorkerBroke) as caught:
                await (await client.request("POST", "/", b"{}")).read()
            assert caught.value.point is point
            client.close()

    run(test())


def test_close_breaks_running_requests() -> None:
    async def test() -> None:
        async with worker_that(lambda _r, _w: asyncio.sleep(20)) as port:
            client = WorkerClient("127.0.0.1", port)
            asking = asyncio.create_task(client.request("GET", "/"))
            await until(lambda: bool(client._all))
            client.close()
            with pytest.raises(WorkerBroke):
                await asking

    run(test())


def test_cancelled_request_closes_the_workers_connection() -> None:
    gone = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async def test() -> None:
        async with worker_that(talk) as port:
            client = WorkerClient("127.0.0.1", port)
            asking = asyncio.create_task(client.request("GET", "/"))
            await until(lambda: bool(client._all))
            await asyncio.sleep(0.05)
            asking.cancel()
            await gone.wait()
            await asyncio.wait([asking])

    run(test())
