"""The HTTP server against hostile, broken and half-sent requests."""

import asyncio
import json
import socket

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.router.access import AccessRules
from app.core.router.http_types import Exchange, HttpLimits
from tests.fakes.http_serving import connected, echo, get, post, run, serving, status_of, until

SMALL = HttpLimits(header_bytes=2048, header_count=20, body_bytes=10_000)


async def answer_to(port: int, data: bytes) -> bytes:
    """All that the server says to `data` before it ends the connection."""
    async with connected(port) as client:
        client.send(data)
        return await client.rest()


ODD_REQUESTS = {
    "length and chunks": (
        b"POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunks and length": (
        b"POST / HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (
        b"POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        400,
    ),
    "negative length": (b"POST / HTTP/1.1\r\nHost: H\r\nContent-Length: -1\r\n\r\n", 400),
    "length in hex": (b"POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 0x2\r\n\r\nab", 400),
    "length with plus": (b"POST / HTTP/1.1\r\nHost: H\r\nContent-Length: +2\r\n\r\nab", 400),
    "huge length": (
        b"POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        400,
    ),
    "chunked is not last": (
        b"POST / HTTP/1.1\r\nHost: H\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
        400,
    ),
    "space before colon": (b"GET / HTTP/1.1\r\nHost : H\r\n\r\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: H\r\nX: a\r\n b\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: H\n\n", 400),
    "NUL in the path": (b"GET /a\0b HTTP/1.1\r\nHost: H\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: H\r\nX: a\0b\r\n\r\n", 400),
    "NUL in a name": (b"GET / HTTP/1.1\r\nHost: H\r\nX\0: a\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\nHost: H\r\n\r\n", 505),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/2.0 request": (b"GET / HTTP/2.0\r\nHost: H\r\n\r\n", 505),
    "TLS hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "absolute target": (b"GET http://evil.example/ HTTP/1.1\r\nHost: H\r\n\r\n", 400),
    "proxy connect": (b"CONNECT evil.example:443 HTTP/1.1\r\nHost: H\r\n\r\n", 400),
    "asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: H\r\n\r\n", 400),
    "foreign host": (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 403),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: H\r\nHost: evil.example\r\n\r\n", 403),
    "not JSON": (b"POST / HTTP/1.1\r\nHost: H\r\nContent-Length: 2\r\n\r\n{}", 415),
    "web page": (b"GET / HTTP/1.1\r\nHost: H\r\nOrigin: https://evil.example\r\n\r\n", 403),
    "bad chunk size": (
        b"POST / HTTP/1.1\r\nHost: H\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        400,
    ),
    "huge header": (b"GET / HTTP/1.1\r\nHost: H\r\nX: " + b"a" * 3000 + b"\r\n\r\n", 431),
    "endless header": (b"GET / HTTP/1.1\r\nHost: H\r\nX: " + b"a" * 300_000, 431),
    "endless path": (b"GET /" + b"a" * 300_000, 431),
    "many headers": (b"GET / HTTP/1.1\r\nHost: H\r\n" + b"X: y\r\n" * 30 + b"\r\n", 431),
    "large body": (
        b"POST / HTTP/1.1\r\nHost: H\r\nContent-Type: application/json\r\n"
        b"Content-Length: 20000\r\n\r\n" + b"1" * 20_000,
        413,
    ),
    "large chunked body": (
        b"POST / HTTP/1.1\r\nHost: H\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"1000\r\n" + b"1" * 4096 + b"\r\n") * 5,
        413,
    ),
    "large trailers": (
        b"POST / HTTP/1.1\r\nHost: H\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: yyyyyyyyyyyyyyyy\r\n" * 500,
        431,
    ),
}


@pytest.mark.parametrize("name", ODD_REQUESTS)
def test_odd_request_is_refused_with_an_envelope_and_the_connection_ends(name: str) -> None:
    data, status = ODD_REQUESTS[name]

    async def test() -> None:
        async with serving(echo, SMALL) as server:
            host = f"127.0.0.1:{server.port}".encode()
            answer = await answer_to(server.port, data.replace(b"Host: H", b"Host: " + host))
            assert status_of(answer) == status
            head, _, body = answer.partition(b"\r\n\r\n")
            assert b"connection: close" in head
            assert json.loads(body)["error"]["message"]
            await until(lambda: server.connections == 0)

    run(test())


def test_refusal_waits_for_the_answers_before_it() -> None:
    async def test() -> None:
        async with serving(echo, SMALL) as server:
            answers = await answer_to(
                server.port, get(server.port, "/1") + get(server.port, "/2") + b"broken\r\n\r\n"
            )
            assert answers.count(b"HTTP/1.1 200") == 2
            assert answers.count(b"HTTP/1.1 400") == 1
            assert answers.index(b"GET /2") < answers.index(b"HTTP/1.1 400")

    run(test())


def test_smuggled_request_behind_a_refused_one_is_never_run() -> None:
    seen: list[str] = []

    async def note(exchange: object) -> None:
        seen.append("run")

    async def test() -> None:
        async with serving(note, SMALL) as server:
            hidden = get(server.port, "/hidden")
            head = f"POST / HTTP/1.1\r\nHost: localhost:{server.port}\r\n".encode()
            for both in (
                b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                b"Content-Type: text/plain\r\nContent-Length: 3\r\n\r\n",
                b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
            ):
                answer = await answer_to(server.port, head + both + hidden)
                assert answer.count(b"HTTP/1.1 4") == 1
                assert b"HTTP/1.1 2" not in answer
        assert seen == []

    run(test())


def test_half_sent_request_is_told_and_closed() -> None:
    async def test() -> None:
        async with serving(echo, HttpLimits(request_timeout_s=0.1)) as server:
            for half in (get(server.port)[:-2], post(server.port, b"{}")[:-1], b"GE"):
                answer = await answer_to(server.port, half)
                assert status_of(answer) == 408

    run(test())


def test_request_that_trickles_in_is_cut_off_all_the_same() -> None:
    async def test() -> None:
        async with serving(echo, HttpLimits(request_timeout_s=0.3)) as server:
            async with connected(server.port) as client:
                client.send(get(server.port)[:-2])

                async def trickle() -> None:
                    while True:
                        client.send(b"X: y\r\n")
                        await asyncio.sleep(0.02)

                drip = asyncio.create_task(trickle())
                assert status_of(await client.answer()) == 408
                drip.cancel()
            await until(lambda: server.connections == 0)

    run(test())


def test_idle_connections_are_closed_without_a_word() -> None:
    async def test() -> None:
        async with serving(echo, HttpLimits(idle_timeout_s=0.1)) as server:
            assert await answer_to(server.port, b"") == b""
            answer = await answer_to(server.port, get(server.port))
            assert answer.count(b"HTTP/1.1") == 1

    run(test())


def test_connection_above_the_limit_gets_a_503_and_room_returns() -> None:
    async def test() -> None:
        async with serving(echo, HttpLimits(connections=3, spared_s=60.0)) as server:
            async with connected(server.port), connected(server.port), connected(server.port):
                await until(lambda: server.connections == 3)
                answer = await answer_to(server.port, get(server.port))
                assert status_of(answer) == 503
                assert b"retry-after: 5" in answer
            await until(lambda: server.connections == 0)
            async with connected(server.port) as client:
                client.send(get(server.port))
                assert status_of(await client.answer()) == 200

    run(test())


def test_connection_above_the_limit_takes_the_place_of_the_longest_idle() -> None:
    async def test() -> None:
        limits = HttpLimits(connections=3, spared_s=0.0)
        is_held, may_go = asyncio.Event(), asyncio.Event()

        async def handler(exchange: Exchange) -> None:
            if exchange.request.path == "/held":
                is_held.set()
                await may_go.wait()
            await echo(exchange)

        async with (
            serving(handler, limits) as server,
            connected(server.port) as first,
            connected(server.port) as second,
            connected(server.port) as third,
        ):
            for client in (second, first):
                client.send(get(server.port))
                assert status_of(await client.answer()) == 200
                await asyncio.sleep(
                    0.02
                )  # uvloop's clock counts milliseconds: no two may share one
            third.send(get(server.port, "/held"))
            await is_held.wait()
            async with connected(server.port) as fourth:
                fourth.send(get(server.port))
                assert status_of(await fourth.answer()) == 200
                assert await second.rest() == b""  # idle for longest
                first.send(get(server.port))
                assert status_of(await first.answer()) == 200
                may_go.set()
                assert status_of(await third.answer()) == 200

    run(test())


def test_body_far_above_the_limit_is_told_so_by_a_client_that_sends_first() -> None:
    async def test() -> None:
        async with serving(echo, HttpLimits(body_bytes=10_000_000)) as server:
            loop = asyncio.get_running_loop()

            def ask() -> bytes:
                with socket.create_connection(("127.0.0.1", server.port), 20.0) as raw:
                    raw.sendall(post(server.port, b"1" * 40_000_000))
                    return raw.recv(65536)

            assert status_of(await loop.run_in_executor(None, ask)) == 413

    run(test())


def test_preflight_of_an_allowed_origin_is_answered_and_its_requests_are_marked() -> None:
    async def test() -> None:
        rules = AccessRules(allowed_origins=frozenset({"https://ui.example"}))
        async with serving(echo, access=rules) as server, connected(server.port) as client:
            origin = "Origin: https://ui.example\r\n"
            client.send(get(server.port, extra=origin).replace(b"GET", b"OPTIONS", 1) * 2)
            for _ in range(2):
                answer = await client.head()
                assert status_of(answer) == 204
                assert b"access-control-allow-methods: GET, POST" in answer
                assert b"content-length" not in answer
            client.send(get(server.port, extra=origin))
            assert b"access-control-allow-origin: https://ui.example" in await client.answer()

    run(test())


@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(st.binary(min_size=1, max_size=120), min_size=1, max_size=12))
def test_random_bytes_never_break_the_server(pieces: list[bytes]) -> None:
    async def test() -> None:
        async with serving(echo, HttpLimits(request_timeout_s=0.05, idle_timeout_s=0.05)) as server:
            valid = post(server.port, b"{}")
            async with connected(server.port) as client:
                # Pieces of a valid request with noise between them.
                step = max(1, len(valid) // len(pieces))
                for index, noise in enumerate(pieces):
                    client.send(valid[index * step : (index + 1) * step])
                    if index % 3 == 2:
                        client.send(noise)
                answer = await client.rest()
            assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
            async with connected(server.port) as client:
                client.send(get(server.port))
                assert status_of(await client.answer()) == 200

    run(test())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.binary(max_size=400), st.lists(st.integers(1, 300), max_size=6))
def test_request_cut_anywhere_is_read_the_same(body: bytes, cuts: list[int]) -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            whole = post(server.port, body, "/p?q=1")
            position = 0
            for cut in sorted(set(cuts)):
                client.send(whole[position:cut])
                await client.writer.drain()
                await asyncio.sleep(0)
                position = cut
            client.send(whole[position:])
            assert (await client.answer()).endswith(b"POST /p?q=1 " + body)

    run(test())
