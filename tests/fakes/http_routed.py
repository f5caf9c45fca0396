"""A front server, a worker behind it, and the splice between them, for tests of the hop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from app.core.errors import WorkerStopped
from app.core.router.http import HttpServer
from app.core.router.http_types import Exchange
from app.core.router.splice import AnswerStream, splice_whole
from app.core.router.wire import wire_of
from app.core.router.worker_client import WorkerBroke, WorkerClient
from tests.fakes.http_serving import serving

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def worker_that(talk: Talk) -> AsyncIterator[int]:
    """A worker whose every connection is handled by `talk`."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@asynccontextmanager
async def routed(
    worker: Callable[[Exchange], Awaitable[None]],
) -> AsyncIterator[tuple[HttpServer, HttpServer, WorkerClient]]:
    """An endpoint that splices everything from `worker`, as the dispatcher does."""
    async with serving(worker) as behind:
        client = WorkerClient("127.0.0.1", behind.port)

        async def handler(exchange: Exchange) -> None:
            wire = wire_of(exchange.request.path)
            stream = AnswerStream(exchange, wire, "m")
            try:
                request = exchange.request
                response = await client.request(request.method, request.path, request.body)
                if response.is_event_stream:
                    await stream.carry(response)
                else:
                    await splice_whole(response, exchange)
            except WorkerBroke as error:
                stream.fail(WorkerStopped(error.message))

        async with serving(handler) as front:
            yield front, behind, client
            client.close()
