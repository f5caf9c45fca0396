"""Our HTTP server on loopback: an asyncio protocol on llhttp, with limits, for one handler.

Started by `composition` through the router; answers through `Exchange`. Core loop only.
"""

from collections.abc import Awaitable, Callable

from app.core.router.access import AccessRules
from app.core.router.http_types import Exchange, HttpLimits


class HttpServer:
    """Serves `handler` on loopback.

    Args:
        handler: called once per request that passed access and limits. A `CoolheadError` that it
            raises becomes an error answer in the wire of the path; anything else is logged and a 500.
        limits: bounds on what clients may do; may be replaced while running.
        access: who may ask; its port is filled in by `start`. May be replaced while running.
    """

    def __init__(
        self,
        handler: Callable[[Exchange], Awaitable[None]],
        limits: HttpLimits,
        access: AccessRules,
    ) -> None:
        self.handler = handler
        self.limits = limits
        self.access = access

    async def start(self, host: str, port: int) -> int:
        """Opens the port; `localhost` opens both loopback addresses, port 0 takes any free one.

        Returns:
            The port really opened.

        Raises:
            EndpointError: when `host` is not a loopback address or the port is taken (says by whom).
        """
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The open port; 0 when closed."""
        raise NotImplementedError

    @property
    def connections(self) -> int:
        raise NotImplementedError

    async def stop(self, drain_s: float) -> None:
        """Closes the port, waits `drain_s` for running answers, then resets what is left."""
        raise NotImplementedError
