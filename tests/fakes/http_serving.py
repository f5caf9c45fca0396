"""A server of ours, a worker that answers as told, and raw sockets, for tests of the router's HTTP."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from app.core.router.access import AccessRules
from app.core.router.http import HttpServer
from app.core.router.http_types import Exchange, HttpLimits

BOUND_S = 20.0


def run(test: Coroutine[Any, Any, None]) -> None:
    """Runs an async test on the loop that the app itself uses here; a hang fails it.

    `COOLHEAD_TEST_LOOP=asyncio` takes the standard loop instead, as Windows does.
    """

    async def bounded() -> None:
        async with asyncio.timeout(BOUND_S):
            await test

    factory = None
    if os.environ.get("COOLHEAD_TEST_LOOP") != "asyncio":
        with suppress(ImportError):
            import uvloop

            factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(bounded())


@asynccontextmanager
async def serving(
    handler: Callable[[Exchange], Awaitable[None]],
    limits: HttpLimits | None = None,
    access: AccessRules | None = None,
) -> AsyncIterator[HttpServer]:
    server = HttpServer(handler, limits or HttpLimits(), access or AccessRules())
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop(0.0)
        assert server.connections == 0


async def echo(exchange: Exchange) -> None:
    """Answers with the method, path and body that came."""
    request = exchange.request
    exchange.send(200, f"{request.method} {request.path}?{request.query} ".encode() + request.body)


class Client:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def answer(self) -> bytes:
        """Head and body of one answer with a content length."""
        head = await self.head()
        for line in head.split(b"\r\n"):
            if line.startswith(b"content-length: "):
                return head + await self.reader.readexactly(int(line[16:]))
        return head

    async def rest(self) -> bytes:
        """All that still comes, until the server ends the connection."""
        return await self.reader.read()

    async def is_reset(self) -> bool:
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionResetError:
            return True
        return False

    def reset(self) -> None:
        """Leaves rudely."""
        handle = self.writer.get_extra_info("socket")
        handle.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def get(port: int, path: str = "/x", extra: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{extra}\r\n".encode()


def post(port: int, body: bytes, path: str = "/v1/chat/completions", extra: str = "") -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{extra}\r\n"
    )
    return head.encode() + body


async def until(fact: Callable[[], bool]) -> None:
    """Waits for a fact."""
    async with asyncio.timeout(BOUND_S):
        while not fact():  # noqa: ASYNC110 - facts about sockets have no event
            await asyncio.sleep(0.005)


def status_of(answer: bytes) -> int:
    if not answer.startswith(b"HTTP/1.1 "):
        pytest.fail(f"no answer: {answer[:200]!r}")
    return int(answer[9:12])
