"""Has a local model answer a request: slot, prompt length, the worker's bytes through to the client.

Called by the dispatcher, once per attempt. Core loop only.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from app.core.errors import AdmissionClosed, CoolheadError, WorkerStopped
from app.core.lifecycle import ExitCause
from app.core.router.admissions import Admissions, Grant, Wish, Workers
from app.core.router.bodies import with_limits
from app.core.router.counting import NEAR, count_prompt
from app.core.router.decision import FallbackReason
from app.core.router.gate import COOL_DOWN_S, Gate
from app.core.router.job import Job, too_long
from app.core.router.sense import check_able
from app.core.router.splice import splice_whole
from app.core.router.sse import usage_of_body
from app.core.router.wire import Wire, error_from_worker
from app.core.router.worker_client import WorkerBroke, WorkerResponse
from app.core.router.worker_response import BUFFER_BYTES

USUAL_ANSWER_TOKENS = 512
EXIT_TOLD_S = 5.0
# A whole answer cannot be ended in the middle; the engine is asked to, and this is the end of waiting.
WHOLE_GRACE_S = 10.0


class LocalDelivery:
    """Thread: core loop only."""

    def __init__(self, admissions: Admissions, workers: Workers, gate: Gate) -> None:
        self._admissions = admissions
        self._workers = workers
        self._gate = gate

    async def deliver(
        self,
        job: Job,
        model_id: str,
        max_wait_s: Callable[[], float],
        keep: list[bytes] | None = None,
    ) -> None:
        """Answers `job` by `model_id`.

        Args:
            job: not answered yet.
            model_id: an installed model.
            max_wait_s: for a slot; asked only where there is none.
            keep: takes a copy of the answer's bytes, for the response cache.

        Raises:
            CoolheadError: whatever went wrong; the client has not been told yet.
            ClientGoneError: when the client left.
        """
        if self._gate.blames:
            self._refuse_the_blamed(job)
        features, action = job.features, job.decision.action
        size_tokens = features.tokens + (features.max_tokens or USUAL_ANSWER_TOKENS)
        grant = self._admissions.enter_at_once(model_id, action.priority, size_tokens)
        if grant is None:
            may_degrade = (
                FallbackReason.OVERLOADED in action.fallbacks
                and FallbackReason.OVERLOADED not in job.fallbacks
            )
            wish = Wish(
                model_id, action.priority, size_tokens, max_wait_s(), action.overload, may_degrade
            )
            grant = await self._admissions.enter(wish)
        job.granted_s = time.monotonic()
        is_idle = True
        try:
            if features.has_images or job.worker_wire is not Wire.CHAT:
                able = grant.post.worker.capabilities
                check_able(model_id, able, job.worker_wire, job.path, features)
            context_tokens = grant.post.worker.context_tokens
            if context_tokens and features.tokens >= NEAR * context_tokens:
                await self._check_length(job, grant)
            is_idle = False
            if job.stream is None and (job.limits.max_seconds or job.limits.max_tokens):
                await self._carry_limited(job, grant, keep)
            else:
                await self._ask(job, grant, job.body, keep)
            is_idle = job.limit_hit is None
        except WorkerBroke as broke:
            error = await self._why(job, grant, broke)
            is_idle = isinstance(error, WorkerStopped)
            raise error from broke
        except _Answered as answered:
            is_idle = True
            raise answered.error from None
        finally:
            self._admissions.leave(grant, is_idle=is_idle)

    def _refuse_the_blamed(self, job: Job) -> None:
        blamed = self._gate.blamed(job.fingerprint, time.monotonic())
        if blamed is not None:
            left_s, sentence = blamed
            raise AdmissionClosed(
                f"This same request cost its worker its life {COOL_DOWN_S - left_s:.0f} s ago: "
                f"{sentence} Make it smaller, or wait.",
                retry_after_s=max(1, round(left_s)),
            )

    @staticmethod
    async def _check_length(job: Job, grant: Grant) -> None:
        worker = grant.post.worker
        if not worker.capabilities.counts_tokens:
            return
        count = await count_prompt(grant.post.client, job.worker_wire, job.body)
        if count is not None and count >= worker.context_tokens:
            raise too_long(count, worker.context_tokens)

    async def _carry_limited(self, job: Job, grant: Grant, keep: list[bytes] | None) -> None:
        """A whole answer under limits; a stream's are watched event by event."""
        seconds = job.limits.max_seconds
        body = with_limits(job.worker_wire, job.body, job.limits.max_tokens, seconds)
        if not seconds:
            await self._ask(job, grant, body, keep)
            return
        try:
            async with asyncio.timeout(seconds + WHOLE_GRACE_S):
                await self._ask(job, grant, body, keep)
        except TimeoutError:
            raise AdmissionClosed(
                f"The answer took longer than {seconds:g} s, which is the limit.", retry_after_s=60
            ) from None

    @staticmethod
    async def _ask(job: Job, grant: Grant, body: bytes, keep: list[bytes] | None) -> None:
        is_whole = job.stream is None and keep is None and job.whole is None
        response = await grant.post.client.request(
            "POST", job.path, body, on_whole=job.send_whole if is_whole else None
        )
        try:
            if response.status != 200:
                raise _Answered(error_from_worker(response.status, await response.read()))
            job.status = 200
            if is_whole:
                if (
                    not response.is_complete
                    and (response.content_length or BUFFER_BYTES) < BUFFER_BYTES
                ):
                    await response.arrived()
                if job.answer is None:
                    response.on_whole = None
                    await splice_whole(response, job.exchange, job.stats)
                else:
                    usage_of_body(job.answer, job.stats)
            else:
                await _carry_response(job, response, keep)
        finally:
            response.close()

    async def _why(self, job: Job, grant: Grant, broke: WorkerBroke) -> CoolheadError:
        """Why the connection broke, in the words of whoever knows."""
        worker = grant.post.worker
        try:
            async with asyncio.timeout(EXIT_TOLD_S):
                exited = await self._workers.worker_exit(worker.worker_id)
        except TimeoutError:
            return broke
        cause: ExitCause = exited.cause
        if cause.is_memory:
            self._gate.blame(job.fingerprint, exited.sentence, time.monotonic())
        return WorkerStopped(
            f"{worker.model_id} was stopped while it answered: {exited.sentence}",
            cause=cause.value,
            retry_after_s=15 if cause.is_memory else 2,
        )


async def _carry_response(job: Job, response: WorkerResponse, keep: list[bytes] | None) -> None:
    if job.stream is None or not response.is_event_stream:
        body = await response.read()
        usage_of_body(body, job.stats)
        if job.whole is not None:
            body = job.whole(body)
        if keep is not None:
            keep.append(body)
        kind = response.content_type or b"application/json"
        job.exchange.send(200, body, ((b"content-type", kind),))
        job.stats.is_complete = True
        job.stats.bytes_sent = len(body)
    elif keep is None:
        await job.stream.carry(response)
    else:
        await job.stream.carry_pieces(_tee(response, keep))


class _Answered(Exception):
    """The worker itself refused: its slot is idle."""

    def __init__(self, error: CoolheadError) -> None:
        super().__init__(str(error))
        self.error = error


async def _tee(response: WorkerResponse, keep: list[bytes]) -> AsyncIterator[bytes]:
    async for piece in response:
        keep.append(piece)
        yield piece
