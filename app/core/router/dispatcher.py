"""Carries requests: decision, door, canned or kept answer, target, fallbacks, and the account of it.

The HTTP server calls `handle` once for each inference request, in a task that is cancelled when the
client leaves. Core loop only.
"""

import asyncio
import functools
import json
import logging
import time
from collections.abc import Callable

from app.core.errors import (
    AdmissionClosed,
    ContextExceeded,
    CoolheadError,
    EngineMissing,
    PathUnknown,
    QueueFull,
    RequestForbidden,
    RequestInvalid,
    RoutesInvalid,
    TargetFailed,
    WorkerError,
    WorkerStartFailed,
)
from app.core.router.bodies import with_limits, with_system_prompt
from app.core.router.canned import canned_answer
from app.core.router.decision import Decision, FallbackReason, TargetKind
from app.core.router.features import RequestFeatures, SentHeaders, extract
from app.core.router.gate import Gate
from app.core.router.http_types import ClientGoneError, Exchange
from app.core.router.job import Job
from app.core.router.limits import ALLOW_REPETITION, AnswerLimits
from app.core.router.local import LocalDelivery
from app.core.router.metrics import Metrics
from app.core.router.names import Names
from app.core.router.ollama import target_path, translated_request
from app.core.router.prompts import Prompts
from app.core.router.remote import RemoteDelivery
from app.core.router.request_log import RequestLog
from app.core.router.response_cache import KeptAnswer, ResponseCache, cache_key
from app.core.router.router import Router
from app.core.router.sense import check_asked
from app.core.router.templated import completion_body
from app.core.router.wire import Wire, plain_path, wire_of
from app.core.settings import LimitSettings, Settings

_log = logging.getLogger(__name__)

DECISION_HEADER = b"x-coolhead-decision"
FALLBACK_HEADER = b"x-coolhead-fallback"
REASON_CHARACTERS = 500
MOST_TOKENS = 2**31 - 1
"""Beyond it the engine's integers wrap: 2**32 + 4 tokens would be four."""

SERVED = frozenset(
    {
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/completions",
        "/completions",
        "/v1/responses",
        "/responses",
        "/v1/messages",
        "/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/embeddings",
        "/v1/rerank",
        "/v1/reranking",
        "/infill",
        "/tokenize",
        "/detokenize",
        "/apply-template",
        "/api/chat",
        "/api/generate",
    }
)


class Dispatcher:
    """Thread: core loop only.

    Args:
        router: decides; asked anew for each request, so a reload counts at once.
        settings: the current settings.
    """

    def __init__(
        self,
        *,
        router: Callable[[], Router],
        settings: Callable[[], Settings],
        gate: Gate,
        names: Names,
        local: LocalDelivery,
        remotes: RemoteDelivery,
        cache: ResponseCache,
        metrics: Metrics,
        log: RequestLog,
    ) -> None:
        self._router = router
        self._settings = settings
        self._gate = gate
        self._prompts = Prompts()
        self._names = names
        self._local = local
        self._remotes = remotes
        self._cache = cache
        self._metrics = metrics
        self._log = log
        self._usual = AnswerLimits()
        self._usual_for: LimitSettings | None = None
        self._jobs: dict[Job, None] = {}  # in the order they came

    @property
    def running(self) -> int:
        """Requests on their way, waiting ones and remote ones included."""
        return len(self._jobs)

    def speeds(self) -> dict[str, float]:
        """Tokens per second, by model, of the answers that stream now."""
        found: dict[str, float] = {}
        for job in self._jobs:
            speed = job.stats.tokens_per_s
            if speed:
                found[job.model_id] = found.get(job.model_id, 0.0) + speed
        return found

    async def handle(self, exchange: Exchange) -> None:
        """Answers one request.

        Raises:
            CoolheadError: when it is refused before it is on its way; the server tells the client.
        """
        request = exchange.request
        path = request.path
        if path not in SERVED:
            path = plain_path(path)
            if path not in SERVED:
                raise PathUnknown(f"There is no {path} here.")
        if request.method != "POST":
            raise RequestInvalid(f"{path} takes POST, not {request.method}.", status=405)
        headers = SentHeaders(dict(request.headers))
        wire = wire_of(path)
        if wire.is_ollama:
            asked = translated_request(wire, request.body)
            features = extract(target_path(wire, asked), headers, asked)
        else:
            features = extract(request.path, headers, request.body)
            check_asked(features)
        decision = self._router().route(features)
        exchange.add_header(DECISION_HEADER, decision_header(decision))
        admission = self._gate.admission()
        if not admission.takes_new and (self._gate.is_shut or not self._goes_elsewhere(decision)):
            self._metrics.refusals.add("closed")
            raise AdmissionClosed(admission.sentence, retry_after_s=admission.retry_after_s)
        job = Job(exchange, wire, features, decision, self._limits(features, decision))
        self._jobs[job] = None
        try:
            await self._answer(job)
        finally:
            self._jobs.pop(job, None)
            job.close()
            # The answer leaves at the end of this round of the loop: before the accounts are made.
            asyncio.get_running_loop().call_soon(self._account, job)

    def kill_newest(self, model_id: str, error: CoolheadError) -> bool:
        """Breaks off the newest answer of a model, for the guard; whether there was one."""
        for job in reversed(self._jobs):
            if job.model_id == model_id and job.granted_s and job.task is not None:
                job.kill_error = error
                job.task.cancel()
                return True
        return False

    def kill_all(self, error: CoolheadError) -> None:
        """Breaks off everything that is on its way; each client is told."""
        for job in list(self._jobs):
            if job.task is not None and job.kill_error is None:
                job.kill_error = error
                job.task.cancel()

    async def _answer(self, job: Job) -> None:
        try:
            await self._run(job)
        except ClientGoneError:
            job.outcome = "client_gone"
        except CoolheadError as error:
            job.fail(error)
        except asyncio.CancelledError:
            if job.kill_error is None or job.exchange.is_gone:
                job.outcome = "client_gone"
                raise
            assert job.task is not None
            job.task.uncancel()
            job.fail(job.kill_error)
        except Exception as error:  # noqa: BLE001 - the edge of a request: it fails, the app goes on
            _log.exception("a request to %s failed", job.features.path)
            job.fail(CoolheadError(f"Coolhead made a mistake: {type(error).__name__}."))

    async def _run(self, job: Job) -> None:
        decision = job.decision
        action = decision.action
        self._metrics.decisions.add(decision.rule, action.target)
        if action.canned:
            self._send_canned(job)
            return
        if action.system_prompt is not None:
            text = self._prompts.render(action.system_prompt, job.features)
            job.body = with_system_prompt(job.features.wire, job.body, text)
        if action.chat_template is not None and job.wire is Wire.CHAT:
            job.body = completion_body(job.body, self._prompts.get(action.chat_template))
        asked_tokens = job.features.max_tokens
        if asked_tokens is not None and asked_tokens > MOST_TOKENS:
            job.body = with_limits(job.worker_wire, job.body, MOST_TOKENS, 0)
        key = b""
        if action.cache.ttl_s and self._can_cache(job):
            key = cache_key(action.target + "\0" + decision.model, decision.path, job.body)
            kept = self._cache.get(key, time.monotonic())
            if kept is not None:
                self._send_kept(job, kept)
                return
        keep: list[bytes] | None = [] if key else None
        await self._with_fallbacks(job, keep)
        if (
            keep
            # The key says who was asked; another's answer would be kept as theirs.
            and not job.fallbacks
            and job.stats.is_complete
            and job.limit_hit is None
            and job.outcome == "ok"
        ):
            is_stream = job.stream is not None
            kind = b"text/event-stream" if is_stream else b"application/json"
            until_s = time.monotonic() + action.cache.ttl_s
            self._cache.put(key, KeptAnswer(b"".join(keep), kind, is_stream, until_s))

    async def _with_fallbacks(self, job: Job, keep: list[bytes] | None) -> None:
        """Tries the target, then fallbacks: each reason once, no target twice, nothing after content."""
        tried: set[str] = set()
        while True:
            try:
                await self._attempt(job, keep)
                return
            except CoolheadError as error:
                tried.add(job.target)
                reason = fallback_reason(error)
                following = job.decision.fallbacks.get(reason) if reason else None
                if (
                    following is None
                    or job.has_content
                    or reason in job.fallbacks
                    or following in tried
                ):
                    raise
                assert reason is not None
                _log.info("%s: %s goes on to %s", reason, job.target, following)
                self._metrics.fallbacks.add(reason)
                job.fallbacks.append(reason)
                if not job.exchange.is_started:
                    told = f"{reason}: {job.target} -> {following}"
                    job.exchange.add_header(FALLBACK_HEADER, told.encode("ascii", "replace"))
                job.target = following
                if keep:
                    keep.clear()

    async def _attempt(self, job: Job, keep: list[bytes] | None) -> None:
        decision = job.decision
        kind = decision.action.kind if not job.fallbacks else self._remotes.kind_of(job.target)
        name = job.target
        is_remote = kind is TargetKind.REMOTE or kind is TargetKind.POOL
        if kind is TargetKind.AUTO:
            name = decision.model
            is_remote = self._remotes.knows(name)
        if is_remote:
            await self._remotes.deliver(job, name, keep)
            return
        job.model_id = self._names.known(name) or await self._names.resolve(name)
        await self._local.deliver(job, job.model_id, self._max_wait_s, keep)

    def _max_wait_s(self) -> float:
        return self._settings().queue.max_wait_s

    def _goes_elsewhere(self, decision: Decision) -> bool:
        """Whether memory pressure here need not stop it."""
        if decision.canned or decision.kind in {TargetKind.REMOTE, TargetKind.POOL}:
            return True
        is_named = decision.kind is TargetKind.AUTO and self._remotes.knows(decision.model)
        return is_named or FallbackReason.UNAVAILABLE in decision.fallbacks

    def _can_cache(self, job: Job) -> bool:
        policy = job.decision.cache
        if not policy.is_on or not job.body or job.wire.is_ollama:
            return False
        if job.stream is not None and job.whole is not None:
            return False  # what is kept would be the completion's events
        is_tool_stream = job.stream is not None and job.features.has_tools
        return policy.streams_with_tools or not is_tool_stream

    def _send_canned(self, job: Job) -> None:
        body, content_type = canned_answer(
            job.wire, job.features.model or "canned", job.decision.canned, job.features.is_stream
        )
        self._send_done(job, body, content_type)

    def _send_kept(self, job: Job, kept: KeptAnswer) -> None:
        self._metrics.cache_hits.add()
        job.is_cached = True
        job.exchange.add_header(b"x-coolhead-cache", b"hit")
        self._send_done(job, kept.body, kept.content_type)

    @staticmethod
    def _send_done(job: Job, body: bytes, content_type: bytes) -> None:
        job.status = 200
        job.stats.is_complete = True
        job.stats.bytes_sent = len(body)
        job.exchange.send(200, body, ((b"content-type", content_type),))

    def _limits(self, features: RequestFeatures, decision: Decision) -> AnswerLimits:
        limits = self._settings().limits
        may_repeat = ALLOW_REPETITION in features.tags
        action = decision.action
        if action.max_tokens is None and action.max_seconds is None and not may_repeat:
            if limits is not self._usual_for:
                self._usual_for = limits
                self._usual = AnswerLimits(
                    limits.max_tokens, limits.max_seconds, limits.stop_repetition
                )
            return self._usual
        return AnswerLimits(
            int(_smaller(limits.max_tokens, action.max_tokens)),
            _smaller(limits.max_seconds, action.max_seconds),
            limits.stop_repetition and not may_repeat,
        )

    def _account(self, job: Job) -> None:
        line = job.line()
        self._metrics.note(line)
        if job.limit_hit is not None:
            self._metrics.limits.add(job.limit_hit.kind.value)
        self._log.write(line)


def _smaller(first: float, second: float | None) -> float:
    """Of two limits, where 0 and None are none."""
    return min(first, second) if first and second else first or second or 0


def fallback_reason(error: CoolheadError) -> FallbackReason | None:
    """Which fallback an error calls for; None for what no other target would do better."""
    if isinstance(error, QueueFull):
        return FallbackReason.OVERLOADED
    if isinstance(error, ContextExceeded):
        return FallbackReason.CONTEXT_EXCEEDED
    if isinstance(error, RequestInvalid | RequestForbidden | RoutesInvalid):
        return None
    if isinstance(error, TargetFailed):
        is_unavailable = bool(error.details.get("is_unavailable"))
        return FallbackReason.UNAVAILABLE if is_unavailable else FallbackReason.FAILED
    if isinstance(error, WorkerError) and not isinstance(error, WorkerStartFailed | EngineMissing):
        return FallbackReason.FAILED
    return FallbackReason.UNAVAILABLE


def decision_header(decision: Decision) -> bytes:
    """Rule, target, reason and microseconds, as JSON in ASCII."""
    action = decision.action
    head = _told(decision.rule, action.target or action.kind.value, decision.model, decision.reason)
    return b'%b, "microseconds": %.1f}' % (head, decision.microseconds)


@functools.lru_cache(maxsize=256)
def _told(rule: str, target: str, model: str, reason: str) -> bytes:
    told = {"rule": rule, "target": target, "model": model, "reason": reason[:REASON_CHARACTERS]}
    return json.dumps(told).encode("ascii")[:-1]
