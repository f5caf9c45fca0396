"""Remote targets as they are now: a client, a breaker and a count of requests for each name.

Made from the routing rules and made anew at each reload; what has not changed is kept, and clients that
answer something still are closed when they are done. Used by `remote.py` and `pools.py`, core loop.
"""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.core.errors import TargetFailed
from app.core.router.breaker import Breaker, BreakerPolicy
from app.core.router.decision import AUTO, TargetKind
from app.core.router.rules import PoolTarget, RemoteTarget, RoutingRules

if TYPE_CHECKING:
    import httpx2

KEYRING_NAME = "coolhead"


@dataclass(slots=True, eq=False)
class Remote:
    """One endpoint elsewhere. Core loop only."""

    target: RemoteTarget
    breaker: Breaker = field(default_factory=Breaker)
    in_flight: int = 0
    is_retired: bool = False
    _client: "httpx2.AsyncClient | None" = None

    @property
    def can_take(self) -> bool:
        """Whether it is well and below its bound."""
        limit = self.target.max_in_flight
        return self.breaker.can_pass(time.monotonic()) and not (limit and self.in_flight >= limit)

    def client(self) -> "httpx2.AsyncClient":
        """Made at first use: the library is heavy, and most people have no remote."""
        if self._client is None:
            import httpx2

            target = self.target
            verify: ssl.SSLContext | bool = target.verify_tls
            if target.verify_tls and target.ca_file:
                verify = ssl.create_default_context(cafile=target.ca_file)
            timeout = httpx2.Timeout(
                connect=target.connect_timeout_s,
                read=max(target.idle_timeout_s, target.first_byte_timeout_s),
                write=target.idle_timeout_s,
                pool=target.connect_timeout_s,
            )
            self._client = httpx2.AsyncClient(
                verify=verify, timeout=timeout, trust_env=target.use_proxy, follow_redirects=False
            )
        return self._client

    async def headers(self) -> dict[str, str]:
        """What is sent with each request.

        Raises:
            TargetFailed: when its key is not where the rules say.
        """
        headers = {
            "content-type": "application/json",
            "accept-encoding": "identity",
            "user-agent": "coolhead",
            **self.target.headers,
        }
        key = await self._key()
        if key:
            headers["authorization"] = f"Bearer {key}"
        return headers

    async def _key(self) -> str:
        target = self.target
        if target.key_env:
            key = os.environ.get(target.key_env, "")
            where = f"the environment variable {target.key_env}"
        elif target.key_keyring:
            key = await asyncio.to_thread(_from_keyring, target.key_keyring)
            where = f"the keyring, as {KEYRING_NAME}/{target.key_keyring}"
        else:
            return ""
        if not key:
            raise TargetFailed(
                f"The key of {target.name} is missing: it was looked for in {where}."
            )
        return key

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _from_keyring(name: str) -> str:
    import keyring
    from keyring.errors import KeyringError

    try:
        return keyring.get_password(KEYRING_NAME, name) or ""
    except KeyringError:
        return ""


class Targets:
    """Every name that is no local model. Thread: core loop only."""

    def __init__(self) -> None:
        self._remotes: dict[str, Remote] = {}
        self._pools: Mapping[str, PoolTarget] = {}

    def use(self, rules: RoutingRules) -> tuple[Remote, ...]:
        """Takes the targets of `rules`; those that are gone are returned, to be closed."""
        policies = {
            member: BreakerPolicy(pool.breaker_failures, pool.back_off_s, pool.max_back_off_s)
            for pool in rules.pools.values()
            for member in pool.members
        }
        before, self._remotes = self._remotes, {}
        for name, target in rules.remotes.items():
            known = before.get(name)
            if known is not None and known.target == target:
                self._remotes[name] = before.pop(name)
            else:
                self._remotes[name] = Remote(target, Breaker(policies.get(name)))
        self._pools = rules.pools
        for retired in before.values():
            retired.is_retired = True
        return tuple(before.values())

    @property
    def pools(self) -> Mapping[str, PoolTarget]:
        return self._pools

    def remotes(self) -> tuple[Remote, ...]:
        return tuple(self._remotes.values())

    def remote(self, name: str) -> Remote | None:
        return self._remotes.get(name)

    def pool(self, name: str) -> PoolTarget | None:
        return self._pools.get(name)

    def kind_of(self, name: str) -> TargetKind:
        if name == AUTO:
            return TargetKind.AUTO
        if name in self._pools:
            return TargetKind.POOL
        return TargetKind.REMOTE if name in self._remotes else TargetKind.LOCAL
