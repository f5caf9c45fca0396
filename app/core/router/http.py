"""Our HTTP server on loopback: an asyncio protocol on llhttp, with limits, for one handler.

Started by `composition` through the router; answers through `Exchange`. Core loop only.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable

from app.core.errors import CoolheadError
from app.core.router.access import AccessRules
from app.core.router.http_connection import Connection
from app.core.router.http_listen import addresses_of, bind_error, open_socket
from app.core.router.http_types import ClientGoneError, Exchange, HttpLimits
from app.core.router.wire import error_answer, wire_of

_log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[None]]


class HttpServer:
    """Serves `handler` on loopback.

    Args:
        handler: called once per request that passed access and limits. A `CoolheadError` that it
            raises becomes an error answer in the wire of the path; anything else is logged and a 500.
        limits: bounds on what clients may do; may be replaced while running (new connections see it).
        access: who may ask; its port is filled in by `start`. Replace it with `set_access`.
    """

    def __init__(self, handler: Handler, limits: HttpLimits, access: AccessRules) -> None:
        self.handler = handler
        self.limits = limits
        self.access = access
        self.port = 0
        self._listeners: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def connections(self) -> int:
        return len(self._connections)

    def set_access(self, access: AccessRules) -> None:
        """Replaces the rules; the open port is kept in them."""
        self.access = dataclasses.replace(access, port=self.port or access.port)

    async def start(self, host: str, port: int) -> int:
        """Opens the port; `localhost` opens both loopback addresses, port 0 takes any free one.

        Returns:
            The port really opened.

        Raises:
            EndpointError: when `host` is not a loopback address or the port is taken (says by whom).
        """
        loop = self._loop = asyncio.get_running_loop()
        opened = []
        for index, address in enumerate(addresses_of(host)):
            try:
                made = open_socket(address, port)
            except OSError as error:
                if index > 0:
                    _log.info("%s port %d stays closed: %s", address, port, error)
                    continue
                raise await loop.run_in_executor(None, bind_error, address, port, error) from error
            opened.append(made)
            port = made.getsockname()[1]
        self.port = port
        self.set_access(self.access)
        for made in opened:
            self._listeners.append(
                await loop.create_server(
                    lambda: Connection(self, loop.time), sock=made, backlog=1024
                )
            )
        self._sweep_deadlines()
        return port

    async def stop(self, drain_s: float) -> None:
        """Closes the port, waits `drain_s` for running answers, then resets what is left."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for connection in tuple(self._connections):
            connection.close_when_done()
        if self._tasks and drain_s > 0:
            await asyncio.wait(tuple(self._tasks), timeout=drain_s)
        for connection in tuple(self._connections):
            connection.reset()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)
        # Transports report their end in the loop's next rounds.
        for _ in range(20):
            if not self._connections:
                break
            await asyncio.sleep(0.005)
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self.port = 0

    # What connections call.

    def admit(self, connection: Connection) -> bool:
        """Counts a new connection; False when there are too many.

        Where all places are taken, one that is kept alive without a request makes room, the longest
        idle first: programs leave such connections lying about, and would lock everyone else out.
        """
        if len(self._connections) < self.limits.connections:
            self._connections.add(connection)
            return True
        idle = min(
            (other for other in self._connections if other.is_idle),
            key=lambda other: other.deadline,
            default=None,
        )
        self._connections.add(connection)
        if idle is None or connection.deadline - idle.deadline < self.limits.spared_s:
            return False
        idle.close_when_done()
        return True

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)

    def begin(self, connection: Connection, exchange: Exchange) -> asyncio.Task[None]:
        """Starts a task that answers this request and the connection's next ones."""
        assert self._loop is not None
        task = self._loop.create_task(self._serve(connection, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, connection: Connection, exchange: Exchange) -> None:
        task = asyncio.current_task()
        assert task is not None
        following: Exchange | None = exchange
        while following is not None:
            following.task = task
            await self._answer(connection, following)
            following = await connection.next_exchange(task)

    async def _answer(self, connection: Connection, exchange: Exchange) -> None:
        try:
            if exchange.request.is_preflight:
                exchange.send(204, b"")
                return
            await self.handler(exchange)
        except ClientGoneError:
            pass
        except asyncio.CancelledError:
            if not exchange.is_gone:
                connection.reset()
            raise
        except CoolheadError as error:
            _fail(exchange, error)
        except Exception:  # noqa: BLE001 - the request edge: one bad request must not end the server
            _log.exception("a request to %s failed", exchange.request.path)
            _fail(exchange, CoolheadError("An error of our own; the log has the details."))
        if not exchange.is_finished and not exchange.is_gone:
            _log.error("a request to %s was left unanswered", exchange.request.path)
            exchange.abort()

    def _sweep_deadlines(self) -> None:
        """Ends what has passed its deadline: one timer for all connections, none per request."""
        assert self._loop is not None
        now = self._loop.time()
        for connection in tuple(self._connections):
            if connection.deadline <= now:
                connection.expire()
        shortest = min(self.limits.request_timeout_s, self.limits.idle_timeout_s, 4.0)
        self._sweep = self._loop.call_later(max(0.02, shortest / 4), self._sweep_deadlines)


def _fail(exchange: Exchange, error: CoolheadError) -> None:
    if exchange.is_finished or exchange.is_gone:
        return
    if exchange.is_started:
        exchange.abort()
        return
    answer = error_answer(wire_of(exchange.request.path), error)
    exchange.send(answer.status, answer.body, answer.headers)
