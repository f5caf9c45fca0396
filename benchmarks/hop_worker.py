"""A worker that costs next to nothing: answers at once, or streams events at a rate.

`hop_worker.py PORT`: any POST whose body has `"stream":true` gets `"n":N` events at `"rate":R` a second
(0: as fast as possible), everything else 640 bytes of JSON.
"""

import asyncio
import re
import sys
from typing import Any

import httptools
import uvloop

ANSWER = (
    b'{"choices":[{"finish_reason":"length","index":0,"message":{"role":"assistant","content":"'
    + b"x" * 360
    + b'"}}],"created":1,"model":"m","object":"chat.completion","usage":{"completion_tokens":90,'
    b'"prompt_tokens":32,"total_tokens":122},"id":"chatcmpl-1","timings":{"prompt_n":32}}'
)
WHOLE = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n"
    b"Content-Type: application/json; charset=utf-8\r\nContent-Length: %d\r\n\r\n%b"
    % (len(ANSWER), ANSWER)
)
HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
# No two alike in a row of a thousand: an answer that repeats itself is ended by the endpoint.
_FRAMES = [
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" w%d"}}],"created":1,'
    b'"id":"chatcmpl-QKbgIrykMuS9YORuU2KVCOtAhEo3zLR9","model":"SmolLM2-135M-Instruct",'
    b'"system_fingerprint":"b0-unknown","object":"chat.completion.chunk"}\n\n'
    % (number * 7919 % 10007)
    for number in range(1, 2001)
]
_END = (
    b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"usage":{"completion_tokens":1,'
    b'"prompt_tokens":1}}\n\ndata: [DONE]\n\n'
)
FRAMES = [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in _FRAMES]
LAST = b"%x\r\n%b\r\n0\r\n\r\n" % (len(_END), _END)


class Worker(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        if b'"stream":true' not in body:
            self.transport.write(WHOLE)
            return
        found = re.search(rb'"n":(\d+),"rate":(\d+)', body)
        count, rate = (int(found[1]), int(found[2])) if found else (10, 0)
        self.transport.write(HEAD)
        if rate:
            loop = asyncio.get_running_loop()
            self.emit(loop, loop.time(), 0, count, 1 / rate)
        else:
            self.transport.write(b"".join(FRAMES[:count]) + LAST)

    def emit(
        self, loop: asyncio.AbstractEventLoop, start: float, number: int, count: int, every_s: float
    ) -> None:
        if self.transport.is_closing():
            return
        if number == count:
            self.transport.write(LAST)
            return
        self.transport.write(FRAMES[number % len(FRAMES)])
        number += 1
        loop.call_at(start + number * every_s, self.emit, loop, start, number, count, every_s)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Worker, "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
