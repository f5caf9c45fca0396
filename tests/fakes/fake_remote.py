"""An OpenAI-compatible endpoint elsewhere that answers, refuses, hangs or breaks off as it is told."""

import asyncio
import contextlib
import json
from typing import Any

ERRORS: dict[str, tuple[int, dict[str, Any]]] = {
    "500": (500, {"error": {"message": "it broke"}}),
    "503": (503, {"error": {"message": "not now"}}),
    "429": (429, {"error": {"message": "too many"}}),
    "401": (401, {"error": {"message": "bad key"}}),
    "400": (400, {"error": {"message": "temperature is wrong"}}),
    "context": (400, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
}


class FakeRemote:
    """`mode`: ok, one of `ERRORS`, hang, drop, reset_mid, cut_mid. Requests are kept in `seen`."""

    def __init__(self, name: str = "remote", mode: str = "ok") -> None:
        self.name = name
        self.mode = mode
        self.seen: list[tuple[str, dict[str, str], Any]] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def asked(self) -> list[Any]:
        """The bodies of the POST requests."""
        return [body for method, _, body in self.seen if method.startswith("POST")]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer(reader, writer)
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {
            line.split(": ", 1)[0].lower(): line.split(": ", 1)[1] for line in head[1:] if line
        }
        raw = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(raw) if raw else None
        self.seen.append((head[0], headers, body))
        if self.mode == "hang":
            await asyncio.sleep(60)
        if self.mode == "drop":
            writer.transport.abort()
            return
        if self.mode in ERRORS:
            status, answer = ERRORS[self.mode]
            self._send(writer, status, answer)
        elif body is None:
            self._send(writer, 200, {"object": "list", "data": []})
        elif body.get("stream"):
            await self._stream(writer, body)
        else:
            message = {"role": "assistant", "content": f"I am {self.name}."}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
            self._send(writer, 200, {"model": body["model"], "choices": [choice], "usage": usage})
        await writer.drain()

    @staticmethod
    def _send(writer: asyncio.StreamWriter, status: int, answer: Any) -> None:
        payload = json.dumps(answer).encode()
        after = "Retry-After: 7\r\n" if status == 429 else ""
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{after}"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode()
            + payload
        )

    async def _stream(self, writer: asyncio.StreamWriter, body: Any) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        for number, word in enumerate(("I ", "am ", self.name, ".")):
            if number == 2 and self.mode == "reset_mid":
                await asyncio.sleep(0.05)
                writer.transport.abort()
                return
            if number == 2 and self.mode == "cut_mid":
                writer.write(b"0\r\n\r\n")
                return
            delta = {"index": 0, "delta": {"content": word}, "finish_reason": None}
            self._event(writer, json.dumps({"model": body["model"], "choices": [delta]}))
            await writer.drain()
        end = {"index": 0, "delta": {}, "finish_reason": "stop"}
        self._event(writer, json.dumps({"model": body["model"], "choices": [end]}))
        self._event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")

    @staticmethod
    def _event(writer: asyncio.StreamWriter, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        writer.write(f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
