"""One small GET to an engine on loopback, for the ready probe. Requests of clients go another way.

Used by `worker.py` on the core loop.
"""

import asyncio
from dataclasses import dataclass

REPLY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


async def get(port: int, path: str, key: str, timeout_s: float = 5.0) -> Reply | None:
    """The engine's reply; None when it does not answer properly in time."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(port, path, key)
    except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError):
        return None


async def _get(port: int, path: str, key: str) -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        # HTTP/1.0, so that the body ends where the connection ends.
        writer.write(
            f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n"
            f"Authorization: Bearer {key}\r\nConnection: close\r\n\r\n".encode()
        )
        await writer.drain()
        data = await reader.read(REPLY_BYTES)
        while len(data) < REPLY_BYTES and (more := await reader.read(REPLY_BYTES)):
            data += more
    finally:
        writer.close()
    head, _, body = data.partition(b"\r\n\r\n")
    return Reply(int(head.split(None, 2)[1]), body) if head else Reply(0, b"")
