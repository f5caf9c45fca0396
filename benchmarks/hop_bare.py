"""Our server, worker client and splice, with a handler that decides nothing: `hop_bare.py PORT WORKER`."""

import asyncio
import gc
import sys

import uvloop

from app.core.router.access import AccessRules
from app.core.router.http import HttpServer
from app.core.router.http_types import Exchange, HttpLimits
from app.core.router.splice import AnswerStream, splice_whole
from app.core.router.wire import wire_of
from app.core.router.worker_client import WorkerClient


async def main() -> None:
    client = WorkerClient("127.0.0.1", int(sys.argv[2]), "key", max_idle=16)

    async def handler(exchange: Exchange) -> None:
        request = exchange.request
        response = await client.request(request.method, request.path, request.body)
        if response.is_event_stream:
            await AnswerStream(exchange, wire_of(request.path), "m").carry(response)
        else:
            await splice_whole(response, exchange)

    server = HttpServer(handler, HttpLimits(), AccessRules())
    await server.start("127.0.0.1", int(sys.argv[1]))
    gc.freeze()
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main())
