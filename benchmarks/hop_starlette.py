"""The usual way to write such a proxy, starlette and httpx2 under uvicorn: `hop_starlette.py PORT WORKER`."""

import sys
from collections.abc import AsyncIterator

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{sys.argv[2]}", timeout=None)


async def proxy(request: Request) -> StreamingResponse:
    asked = client.build_request(
        request.method,
        request.url.path,
        content=await request.body(),
        headers={"content-type": request.headers.get("content-type", "")},
    )
    answer = await client.send(asked, stream=True)

    async def pieces() -> AsyncIterator[bytes]:
        async for piece in answer.aiter_raw():
            yield piece
        await answer.aclose()

    return StreamingResponse(
        pieces(), status_code=answer.status_code, media_type=answer.headers.get("content-type")
    )


app = Starlette(routes=[Route("/{path:path}", proxy, methods=["GET", "POST"])])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
