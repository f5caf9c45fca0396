"""Has an endpoint elsewhere answer a request: TLS, proxies and keys by httpx2, bytes passed through.

Called by the dispatcher, once per attempt. Core loop only. httpx2 is imported at the first use.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from app.core.errors import (
    ContextExceeded,
    CoolheadError,
    QueueFull,
    RequestInvalid,
    TargetFailed,
)
from app.core.router.bodies import for_remote
from app.core.router.decision import TargetKind
from app.core.router.job import Job
from app.core.router.pools import Pools
from app.core.router.rules import RoutingRules
from app.core.router.sse import usage_of_body
from app.core.router.targets import Remote, Targets

if TYPE_CHECKING:
    import httpx2

LARGEST_ANSWER_BYTES = 64 * 1024 * 1024
_CONTEXT_WORDS = ("context_length_exceeded", "exceed_context_size", "maximum context length")


class RemoteDelivery:
    """Thread: core loop only."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._pools = Pools(targets)

    def use(self, rules: RoutingRules) -> None:
        """Takes new rules; requests on their way keep the clients they have."""
        for remote in self._targets.use(rules):
            if not remote.in_flight:
                asyncio.get_running_loop().create_task(remote.close())
        self._pools.start_checks()

    async def close(self) -> None:
        self._pools.stop_checks()
        for remote in self._targets.remotes():
            await remote.close()

    def kind_of(self, name: str) -> TargetKind:
        return self._targets.kind_of(name)

    def knows(self, name: str) -> bool:
        return self._targets.kind_of(name) in {TargetKind.REMOTE, TargetKind.POOL}

    async def deliver(self, job: Job, name: str, keep: list[bytes] | None = None) -> None:
        """Answers `job` by the remote or pool `name`; members of a pool are tried one after another.

        Raises:
            TargetFailed: nobody there could answer; `is_unavailable` says that nobody was asked.
            QueueFull: it is full.
            ContextExceeded: the prompt is too long for it.
            RequestInvalid: it does not take the request.
            ClientGoneError: when the client left.
        """
        pool = self._targets.pool(name)
        if pool is None:
            remote = self._targets.remote(name)
            if remote is None:
                raise TargetFailed(f"There is no target {name!r}.", is_unavailable=True)
            await self._ask(job, self._able(remote), keep)
            return
        tried: list[str] = []
        last: CoolheadError | None = None
        while (member := self._pools.choose(pool, tried)) is not None:
            tried.append(member.target.name)
            try:
                await self._ask(job, member, keep)
                return
            except (TargetFailed, QueueFull) as error:
                if job.has_content:
                    raise
                last = error
        raise last or TargetFailed(
            f"No member of {name} can take a request now.", is_unavailable=True, retry_after_s=10
        )

    @staticmethod
    def _able(remote: Remote) -> Remote:
        if remote.can_take:
            return remote
        left_s = remote.breaker.opens_in_s(time.monotonic())
        if left_s or not remote.target.max_in_flight:
            raise TargetFailed(
                f"{remote.target.name} has failed several times in a row and is left alone for "
                f"{left_s:.0f} s more.",
                is_unavailable=True,
                status=503,
                retry_after_s=max(1, round(left_s)),
            )
        raise QueueFull(
            f"{remote.target.name} answers {remote.in_flight} requests already, which is its limit.",
            retry_after_s=10,
        )

    async def _ask(self, job: Job, remote: Remote, keep: list[bytes] | None) -> None:
        breaker = remote.breaker
        breaker.passes(time.monotonic())
        remote.in_flight += 1
        job.model_id = remote.target.name
        try:
            await self._carry(job, remote, keep)
        except TargetFailed:
            breaker.failed(time.monotonic())
            raise
        except CoolheadError:
            breaker.succeeded()  # it answered, if not as one would wish
            raise
        except BaseException:
            breaker.dropped()
            raise
        else:
            breaker.succeeded()
        finally:
            remote.in_flight -= 1
            if remote.is_retired and not remote.in_flight:
                await remote.close()

    async def _carry(self, job: Job, remote: Remote, keep: list[bytes] | None) -> None:
        import httpx2

        target = remote.target
        asked = job.decision.model
        model = target.models.get(asked) or target.model
        body = for_remote(job.body, model, has_own_fields=job.features.has_own_fields)
        url = target.base_url + job.path.removeprefix("/v1")
        headers = await remote.headers()
        if not job.features.is_stream:
            headers["accept"] = "application/json"
        client = remote.client()
        request = client.build_request("POST", url, content=body, headers=headers)
        try:
            async with asyncio.timeout(target.first_byte_timeout_s):
                response = await client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError) as error:
            raise TargetFailed(
                f"{target.name} cannot be reached: {_said(error)}.", is_unavailable=True
            ) from error
        except (httpx2.HTTPError, TimeoutError) as error:
            raise TargetFailed(f"{target.name} did not answer: {_said(error)}.") from error
        try:
            if response.status_code >= 300:
                raise _refusal(target.name, response, await _whole(target.name, response))
            await self._pass_on(job, target.name, response, keep)
        finally:
            with contextlib.suppress(httpx2.HTTPError, OSError):
                await response.aclose()

    @staticmethod
    async def _pass_on(
        job: Job, name: str, response: "httpx2.Response", keep: list[bytes] | None
    ) -> None:
        content_type = response.headers.get("content-type", "application/json").encode("latin-1")
        job.status = 200
        if job.stream is not None and content_type.startswith(b"text/event-stream"):
            await job.stream.carry_pieces(_pieces(name, response, keep))
            return
        body = await _whole(name, response)
        usage_of_body(body, job.stats)
        if job.whole is not None:
            body = job.whole(body)
        if keep is not None:
            keep.append(body)
        job.exchange.send(200, body, ((b"content-type", content_type),))
        job.stats.bytes_sent = len(body)
        job.stats.is_complete = True


async def _pieces(
    name: str, response: "httpx2.Response", keep: list[bytes] | None
) -> AsyncIterator[bytes]:
    import httpx2

    try:
        async for piece in response.aiter_bytes():
            if keep is not None:
                keep.append(piece)
            yield piece
    except (httpx2.HTTPError, OSError) as error:
        raise TargetFailed(f"{name} broke off its answer: {_said(error)}.") from error


async def _whole(name: str, response: "httpx2.Response") -> bytes:
    pieces: list[bytes] = []
    size_bytes = 0
    async for piece in _pieces(name, response, None):
        pieces.append(piece)
        size_bytes += len(piece)
        if size_bytes > LARGEST_ANSWER_BYTES:
            raise TargetFailed(f"{name} sent an answer of more than 64 MiB.")
    return b"".join(pieces)


def _refusal(name: str, response: "httpx2.Response", body: bytes) -> CoolheadError:
    """A remote's error as one of ours."""
    status = response.status_code
    text = _words(body)
    said = f"{name} answered with status {status}" + (f": {text}" if text else ".")
    if any(words in body.decode("utf-8", "replace") for words in _CONTEXT_WORDS):
        return ContextExceeded(said)
    if status == 429:
        after = response.headers.get("retry-after", "")
        return QueueFull(said, retry_after_s=int(after) if after.isdigit() else 10)
    if status in {401, 403, 404} or status < 400:
        return TargetFailed(said, is_unavailable=True)
    if status < 500:
        return RequestInvalid(said, status=status)
    return TargetFailed(said, is_unavailable=status == 503)


def _words(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    inner = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(inner, dict):
        inner = inner.get("message", "")
    return str(inner)[:500]


def _said(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip().rstrip(".")
