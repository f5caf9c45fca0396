"""The HTTP server on real sockets: answers, keep-alive, pipelining, back-pressure, leaving, stopping."""

import asyncio
import socket

import pytest

from app.core.errors import EndpointError, QueueFull
from app.core.router.access import AccessRules
from app.core.router.http import HttpServer
from app.core.router.http_types import ClientGoneError, Exchange, HttpLimits
from tests.fakes.http_serving import (
    connected,
    echo,
    get,
    post,
    run,
    serving,
    status_of,
    until,
)


def test_request_is_handed_over_whole_and_answered() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            client.send(post(server.port, b'{"a":1}', "/v1/x?beta=true"))
            answer = await client.answer()
            assert status_of(answer) == 200
            assert answer.endswith(b'POST /v1/x?beta=true {"a":1}')

    run(test())


def test_body_that_comes_in_single_bytes_is_joined() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            for byte in post(server.port, b"[1, 2]"):
                client.send(bytes([byte]))
                await client.writer.drain()
                await asyncio.sleep(0)
            assert (await client.answer()).endswith(b"[1, 2]")

    run(test())


def test_chunked_body_is_joined_and_trailers_are_dropped() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            head = post(server.port, b"").replace(
                b"Content-Length: 0", b"Transfer-Encoding: chunked"
            )
            client.send(head + b"3\r\n[1,\r\n2\r\n2]\r\n0\r\nx-t: 1\r\n\r\n")
            assert (await client.answer()).endswith(b"[1,2]")
            client.send(get(server.port))
            assert status_of(await client.answer()) == 200

    run(test())


def test_connection_is_kept_and_closed_when_asked() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            for _ in range(3):
                client.send(get(server.port))
                assert b"connection:" not in await client.answer()
            client.send(get(server.port, extra="Connection: close\r\n"))
            assert b"connection: close" in await client.answer()
            assert await client.rest() == b""

    run(test())


def test_http_1_0_gets_no_chunks() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.start(200)
        await exchange.write(b"one")
        await exchange.write(b"two")
        exchange.finish()

    async def test() -> None:
        async with serving(stream) as server, connected(server.port) as client:
            client.send(f"GET / HTTP/1.0\r\nHost: localhost:{server.port}\r\n\r\n".encode())
            answer = await client.rest()
            assert b"chunked" not in answer
            assert answer.endswith(b"\r\n\r\nonetwo")

    run(test())


def test_stream_is_chunked_and_its_first_piece_travels_with_the_head() -> None:
    async def stream(exchange: Exchange) -> None:
        exchange.add_header(b"x-coolhead-decision", b"rule")
        exchange.start(200, ((b"content-type", b"text/event-stream"),))
        exchange.write_nowait(b"data: 1\n\n")
        exchange.write_nowait(b"")
        exchange.write_nowait(b"data: 2\n\n")
        exchange.finish()

    async def test() -> None:
        async with serving(stream) as server, connected(server.port) as client:
            client.send(get(server.port))
            head = await client.head()
            assert b"x-coolhead-decision: rule\r\n" in head
            body = await client.reader.readuntil(b"0\r\n\r\n")
            assert body == b"9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n"

    run(test())


def test_head_request_gets_headers_alone() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            client.send(get(server.port).replace(b"GET", b"HEAD", 1) + get(server.port))
            head = await client.head()
            assert b"content-length: 9" in head
            assert (await client.answer()).endswith(b"GET /x? ")

    run(test())


def test_expect_continue_is_answered_before_the_body() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            whole = post(server.port, b"{}", extra="Expect: 100-continue\r\n")
            client.send(whole[:-2])
            assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
            client.send(b"{}")
            assert status_of(await client.answer()) == 200

    run(test())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def slow_first(exchange: Exchange) -> None:
        if exchange.request.path == "/0":
            await asyncio.sleep(0.05)
        exchange.send(200, exchange.request.path.encode())

    async def test() -> None:
        async with serving(slow_first) as server, connected(server.port) as client:
            client.send(b"".join(get(server.port, f"/{n}") for n in range(20)))
            for n in range(20):
                assert (await client.answer()).endswith(f"/{n}".encode())

    run(test())


def test_ten_thousand_pipelined_requests_are_all_answered() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            client.send(get(server.port) * 10_000)
            first = await client.answer()
            assert await client.reader.readexactly(9_999 * len(first)) == first * 9_999

    run(test())


def test_offered_upgrade_is_declined_and_the_body_is_still_read() -> None:
    async def test() -> None:
        async with serving(echo) as server, connected(server.port) as client:
            extra = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
            client.send(post(server.port, b"[7]", extra=extra) + get(server.port))
            assert (await client.answer()).endswith(b"[7]")
            assert (await client.answer()).endswith(b"GET /x? ")

    run(test())


def test_error_of_the_handler_becomes_an_envelope_of_the_wire() -> None:
    async def full(exchange: Exchange) -> None:
        raise QueueFull("32 requests are waiting.", retry_after_s=7)

    async def test() -> None:
        async with serving(full) as server, connected(server.port) as client:
            client.send(post(server.port, b"{}", "/v1/messages"))
            answer = await client.answer()
            assert status_of(answer) == 429
            assert b"retry-after: 7\r\n" in answer
            assert b'"type":"rate_limit_error"' in answer

    run(test())


def test_bug_of_the_handler_is_a_500_that_says_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(exchange: Exchange) -> None:
        raise KeyError("private")

    async def test() -> None:
        async with serving(broken) as server, connected(server.port) as client:
            client.send(get(server.port))
            answer = await client.answer()
            assert status_of(answer) == 500
            assert b"private" not in answer

    run(test())
    assert "private" in caplog.text


def test_bug_after_the_head_resets_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(exchange: Exchange) -> None:
        exchange.start(200)
        await exchange.write(b"half")
        raise KeyError("private")

    async def test() -> None:
        async with serving(broken) as server, connected(server.port) as client:
            client.send(get(server.port))
            assert await client.is_reset()

    run(test())
    assert "private" in caplog.text


def test_abort_is_a_reset_and_the_handler_goes_on() -> None:
    done = asyncio.Event()

    async def stop_short(exchange: Exchange) -> None:
        exchange.start(200)
        await exchange.write(b"half")
        exchange.abort()
        await asyncio.sleep(0.02)
        done.set()

    async def test() -> None:
        async with serving(stop_short) as server, connected(server.port) as client:
            client.send(get(server.port))
            assert await client.is_reset()
            await asyncio.wait_for(done.wait(), 20)

    run(test())


def test_break_off_delivers_its_last_words_and_no_clean_end() -> None:
    async def stop_short(exchange: Exchange) -> None:
        exchange.start(200)
        await exchange.write(b"half")
        exchange.break_off(b"error")

    async def test() -> None:
        async with serving(stop_short) as server, connected(server.port) as client:
            client.send(get(server.port))
            answer = await client.rest()
            assert answer.endswith(b"5\r\nerror\r\n")

    run(test())


def test_cancel_that_comes_after_the_answer_leaves_the_next_request_alone() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def note(exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        exchange.send(200, b"{}")

    async def test() -> None:
        async with serving(note) as server, connected(server.port) as client:
            for _ in range(3):
                client.send(get(server.port))
                assert status_of(await client.answer()) == 200
                # Idle: the task waits for the next request. Then: cancelled as one arrives.
                tasks[-1].cancel()
            client.send(get(server.port) * 2)
            assert status_of(await client.answer()) == 200
            tasks[-1].cancel()
            assert status_of(await client.answer()) == 200

    run(test())


def test_request_that_comes_while_the_last_one_is_tidied_up_is_answered() -> None:
    gate = asyncio.Event()

    async def slow_end(exchange: Exchange) -> None:
        exchange.send(200, exchange.request.path.encode())
        if exchange.request.path == "/1":
            await gate.wait()

    async def test() -> None:
        async with serving(slow_end) as server, connected(server.port) as client:
            client.send(get(server.port, "/1"))
            assert (await client.answer()).endswith(b"/1")
            client.send(get(server.port, "/2"))
            assert (await client.answer()).endswith(b"/2")
            gate.set()
            client.send(get(server.port, "/3"))
            assert (await client.answer()).endswith(b"/3")

    run(test())


@pytest.mark.parametrize("rudely", [True, False])
def test_client_that_leaves_cancels_its_handler(rudely: bool) -> None:
    seen: list[str] = []

    async def wait(exchange: Exchange) -> None:
        seen.append("begun")
        try:
            await exchange.client_gone
        finally:
            assert exchange.is_gone
            try:
                await exchange.write(b"x")
            except (ClientGoneError, RuntimeError):
                seen.append("gone")

    async def test() -> None:
        async with serving(wait) as server:
            async with connected(server.port) as client:
                client.send(get(server.port))
                await until(lambda: bool(seen))
                if rudely:
                    client.reset()
            await until(lambda: seen == ["begun", "gone"])
            await until(lambda: server.connections == 0)

    run(test())


def test_slow_reader_holds_the_writer_back() -> None:
    written = 0

    async def flood(exchange: Exchange) -> None:
        nonlocal written
        exchange.start(200)
        for _ in range(400):
            await exchange.write(b"x" * 65536)
            written += 65536
        exchange.finish()

    async def test() -> None:
        async with serving(flood) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
            writer.write(get(server.port))
            await until(lambda: written > 0)
            before = -1
            while before != written:
                before = written
                await asyncio.sleep(0.2)
            assert written < 400 * 65536
            await reader.readuntil(b"\r\n\r\n")
            for _ in range(400):
                assert await reader.readexactly(7 + 65536 + 2)
            assert await reader.readexactly(5) == b"0\r\n\r\n"
            assert written == 400 * 65536
            writer.close()

    run(test())


def test_client_that_never_reads_is_cut_off() -> None:
    ended = asyncio.Event()

    async def flood(exchange: Exchange) -> None:
        exchange.start(200)
        try:
            while True:
                await exchange.write(b"x" * 65536)
        finally:
            ended.set()

    async def test() -> None:
        async with serving(flood, HttpLimits(stall_timeout_s=0.2)) as server:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
            writer.write(get(server.port))
            await ended.wait()
            writer.transport.abort()

    run(test())


def test_stop_drains_what_is_running_and_closes_what_is_idle() -> None:
    release = asyncio.Event()

    async def wait(exchange: Exchange) -> None:
        exchange.start(200)
        await exchange.write(b"a")
        await release.wait()
        exchange.finish()

    async def test() -> None:
        server = HttpServer(wait, HttpLimits(), AccessRules())
        port = await server.start("127.0.0.1", 0)
        async with connected(port) as busy, connected(port) as idle:
            busy.send(get(port))
            await busy.head()
            await until(lambda: server.connections == 2)
            stopping = asyncio.create_task(server.stop(20.0))
            assert await idle.rest() == b""
            release.set()
            assert (await busy.rest()).endswith(b"0\r\n\r\n")
            await stopping
        assert server.connections == 0
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)

    run(test())


def test_stop_resets_what_outlasts_the_drain() -> None:
    cancelled: list[bool] = []

    async def wait(exchange: Exchange) -> None:
        exchange.start(200)
        await exchange.write(b"a")
        try:
            await asyncio.sleep(100)
        finally:
            cancelled.append(True)

    async def test() -> None:
        server = HttpServer(wait, HttpLimits(), AccessRules())
        port = await server.start("127.0.0.1", 0)
        async with connected(port) as client:
            client.send(get(port))
            await client.head()
            await server.stop(0.05)
            assert await client.is_reset()
        assert cancelled == [True]
        assert server.connections == 0

    run(test())


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org", ""])
def test_start_on_anything_but_loopback_is_refused(host: str) -> None:
    async def test() -> None:
        with pytest.raises(EndpointError, match=r"only 127\.0\.0\.1"):
            await HttpServer(echo, HttpLimits(), AccessRules()).start(host, 0)

    run(test())


def test_start_on_a_taken_port_says_by_whom() -> None:
    async def test() -> None:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            with pytest.raises(EndpointError, match=rf"Port {port} is in use by .+ \(process \d+"):
                await HttpServer(echo, HttpLimits(), AccessRules()).start("127.0.0.1", port)

    run(test())


def test_start_on_localhost_answers_on_both_loopback_addresses() -> None:
    async def test() -> None:
        server = HttpServer(echo, HttpLimits(), AccessRules())
        port = await server.start("localhost", 0)
        try:
            for address in ("127.0.0.1", "::1"):
                try:
                    reader, writer = await asyncio.open_connection(address, port)
                except OSError:
                    assert address == "::1"
                    continue
                writer.write(get(port))
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.close()
        finally:
            await server.stop(0.0)

    run(test())


def test_server_starts_again_on_the_same_port() -> None:
    async def test() -> None:
        server = HttpServer(echo, HttpLimits(), AccessRules())
        port = await server.start("127.0.0.1", 0)
        async with connected(port) as client:
            client.send(get(port))
            await client.answer()
        await server.stop(0.0)
        assert await server.start("127.0.0.1", port) == port
        async with connected(port) as client:
            client.send(get(port))
            assert status_of(await client.answer()) == 200
        await server.stop(0.0)

    run(test())
