"""Chooses a member of a pool, and keeps asking the members whether they are well.

Used by `remote.py`; the checks run as one task for each pool. Core loop only.
"""

import asyncio
import logging
import time
from collections.abc import Collection

from app.core.router.breaker import BreakerState
from app.core.router.rules import PoolTarget
from app.core.router.targets import Remote, Targets

_log = logging.getLogger(__name__)


class Pools:
    """Thread: core loop only."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._turns: dict[str, int] = {}
        self._checks: list[asyncio.Task[None]] = []

    def choose(self, pool: PoolTarget, without: Collection[str] = ()) -> Remote | None:
        """The next member that can take a request; None when none can."""
        members = [self._targets.remote(name) for name in pool.members if name not in without]
        able = [member for member in members if member is not None and member.can_take]
        if not able:
            return None
        turn = self._turns.get(pool.name, 0)
        self._turns[pool.name] = turn + 1
        if pool.strategy == "least_in_flight":
            # Among equals by turns, so that an idle pool is used evenly.
            able = able[turn % len(able) :] + able[: turn % len(able)]
            return min(able, key=lambda member: member.in_flight)
        names = [member.target.name for member in able]
        order = list(pool.members)
        start = turn % len(order)
        for name in order[start:] + order[:start]:
            if name in names:
                return able[names.index(name)]
        return able[0]

    def start_checks(self) -> None:
        """Health checks for the pools as they are now; those of before end."""
        self.stop_checks()
        loop = asyncio.get_running_loop()
        for pool in self._targets.pools.values():
            if pool.health_path and pool.health_interval_s > 0:
                task = loop.create_task(self._check(pool), name=f"health of {pool.name}")
                self._checks.append(task)

    def stop_checks(self) -> None:
        for task in self._checks:
            task.cancel()
        self._checks.clear()

    async def _check(self, pool: PoolTarget) -> None:
        while True:
            await asyncio.gather(
                *(
                    self._check_one(pool, member)
                    for name in pool.members
                    if (member := self._targets.remote(name)) is not None
                )
            )
            await asyncio.sleep(pool.health_interval_s)

    @staticmethod
    async def _check_one(pool: PoolTarget, member: Remote) -> None:
        """A check that fails counts as a failed request; one that succeeds closes a breaker in probe."""
        import httpx2

        from app.core.errors import TargetFailed

        state = member.breaker.state(time.monotonic())
        if state is BreakerState.OPEN:
            return
        try:
            async with asyncio.timeout(pool.health_timeout_s):
                response = await member.client().get(
                    f"{member.target.base_url}{pool.health_path}", headers=await member.headers()
                )
            is_well = response.status_code < 500
        except (httpx2.HTTPError, OSError, TimeoutError, TargetFailed) as error:
            _log.info("%s is not well: %s", member.target.name, error)
            is_well = False
        if not is_well:
            member.breaker.failed(time.monotonic())
        elif state is BreakerState.HALF_OPEN:
            member.breaker.succeeded()
