"""The command line's way in while the app runs, also while its endpoint is closed.

Stop closes the port that clients know; `coolhead status`, `coolhead stop` and a second start must still
reach the app. So the admin part has a loopback port of its own, any free one, named in the state
folder, and answers nothing without the token. Core loop only.
"""

from app.core.errors import PathUnknown
from app.core.router.access import AccessRules
from app.core.router.admin import ADMIN, Admin
from app.core.router.http import HttpServer
from app.core.router.http_types import Exchange, HttpLimits

HOST = "127.0.0.1"


class AdminDoor:
    """Thread: core loop only.

    Args:
        admin: answers the calls.
        token: asked for by each.
    """

    def __init__(self, admin: Admin, token: str) -> None:
        self._admin = admin
        self._server = HttpServer(self._handle, HttpLimits(), AccessRules(admin_token=token))

    @property
    def port(self) -> int:
        """0 while closed."""
        return self._server.port

    async def open(self) -> None:
        """Raises: EndpointError when no loopback port can be opened."""
        await self._server.start(HOST, 0)

    async def close(self, drain_s: float) -> None:
        """Ends event streams, lets running calls end for `drain_s`, and closes the port."""
        self._admin.close()
        await self._server.stop(drain_s)

    async def _handle(self, exchange: Exchange) -> None:
        path = exchange.request.path
        if not path.startswith(ADMIN):
            raise PathUnknown(f"There is no {path} at the admin port.")
        await self._admin.handle(exchange)
