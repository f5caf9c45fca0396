"""What `/metrics` shows, in Prometheus' text format. Counted by the dispatcher, on the core loop.

Counting is a step on the way of each request, so that it adds to a dict; the library's own counters
take a lock and ten times as long. Its families are made when somebody asks.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from app.core.handle import Snapshot
from app.core.router.request_log import RequestLine
from app.core.router.scheduler import ModelView

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

NOTED_KEPT = 64

_TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 90, 180)
_WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)


class Count:
    """Something counted, by labels."""

    __slots__ = ("_labels", "_name", "_text", "_values")

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._values: dict[tuple[str, ...], int] = {} if labels else {(): 0}

    def add(self, *labels: str, by: int = 1) -> None:
        values = self._values
        values[labels] = values.get(labels, 0) + by

    def family(self) -> Metric:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


class Spread:
    """How times are spread, by model."""

    __slots__ = ("_bounds_s", "_name", "_sums_s", "_text", "_values")

    def __init__(self, name: str, text: str, bounds_s: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds_s = bounds_s
        self._values: dict[str, list[int]] = {}
        self._sums_s: dict[str, float] = {}

    def observe(self, model: str, seconds: float) -> None:
        counts = self._values.get(model)
        if counts is None:
            counts = self._values[model] = [0] * (len(self._bounds_s) + 1)
            self._sums_s[model] = 0.0
        counts[bisect_left(self._bounds_s, seconds)] += 1
        self._sums_s[model] += seconds

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=["model"])
        names = [str(float(bound)) for bound in self._bounds_s] + ["+Inf"]
        for model, counts in self._values.items():
            so_far, buckets = 0, []
            for name, count in zip(names, counts, strict=True):
                so_far += count
                buckets.append((name, so_far))
            family.add_metric([model], buckets, self._sums_s[model])
        return family


class Metrics:
    """Thread: core loop only.

    Args:
        views: the scheduler's models, read when metrics are asked for.
        snapshot: the newest snapshot, for memory and pressure.
    """

    def __init__(
        self, views: Callable[[], Iterable[ModelView]], snapshot: Callable[[], Snapshot]
    ) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._noted: list[RequestLine] = []
        self.requests = Count("coolhead_requests", "Requests by outcome", ["outcome"])
        self.decisions = Count("coolhead_decisions", "Decisions by rule", ["rule", "target"])
        self.refusals = Count("coolhead_refusals", "Refused requests by reason", ["reason"])
        self.fallbacks = Count("coolhead_fallbacks", "Fallbacks by reason", ["reason"])
        self.cache_hits = Count("coolhead_cache_hits", "Answers from the response cache")
        self.tokens = Count("coolhead_tokens", "Tokens by kind", ["model", "kind"])
        self.limits = Count("coolhead_limits", "Answers ended by a limit", ["limit"])
        self.ttft = Spread(
            "coolhead_ttft_seconds", "From request to first content", _TTFT_BUCKETS_S
        )
        self.wait = Spread("coolhead_queue_seconds", "From request to slot", _WAIT_BUCKETS_S)
        self._registry.register(
            _Kept(
                self.requests,
                self.decisions,
                self.refusals,
                self.fallbacks,
                self.cache_hits,
                self.tokens,
                self.limits,
                self.ttft,
                self.wait,
            )
        )
        self._registry.register(_Live(views, snapshot))

    def note(self, line: RequestLine) -> None:
        """A request has ended. Counted in bunches: one at a time, each finds the caches cold."""
        self._noted.append(line)
        if len(self._noted) >= NOTED_KEPT:
            self._count()

    def _count(self) -> None:
        lines, self._noted = self._noted, []
        for line in lines:
            self.requests.add(line.outcome)
            if line.status in {429, 503}:
                self.refusals.add(line.outcome)
            if line.queued_ms:
                self.wait.observe(line.model, line.queued_ms / 1000)
            if line.ttft_ms:
                self.ttft.observe(line.model, line.ttft_ms / 1000)
            if line.prompt_tokens:
                self.tokens.add(line.model, "prompt", by=line.prompt_tokens)
            if line.completion_tokens:
                self.tokens.add(line.model, "completion", by=line.completion_tokens)

    def render(self) -> bytes:
        self._count()
        return generate_latest(self._registry)


class _Kept(Collector):
    """What is counted request by request."""

    def __init__(self, *kept: Count | Spread) -> None:
        self._kept = kept

    def collect(self) -> Iterable[Metric]:
        return [one.family() for one in self._kept]


class _Live(Collector):
    """Gauges that are read, not kept."""

    def __init__(
        self, views: Callable[[], Iterable[ModelView]], snapshot: Callable[[], Snapshot]
    ) -> None:
        self._views = views
        self._snapshot = snapshot

    def collect(self) -> Iterable[GaugeMetricFamily]:
        in_flight = GaugeMetricFamily(
            "coolhead_in_flight", "Requests holding a slot", labels=["model"]
        )
        queued = GaugeMetricFamily(
            "coolhead_queued", "Requests waiting for a slot", labels=["model"]
        )
        for view in self._views():
            in_flight.add_metric([view.model_id], view.in_flight)
            queued.add_metric([view.model_id], view.queued)
        yield in_flight
        yield queued
        snapshot = self._snapshot()
        planned = GaugeMetricFamily(
            "coolhead_memory_planned_bytes", "Memory planned", labels=["model", "device"]
        )
        taken = GaugeMetricFamily(
            "coolhead_memory_taken_bytes", "Memory taken", labels=["model", "device"]
        )
        speed = GaugeMetricFamily("coolhead_tokens_per_second", "Decode speed", labels=["model"])
        for worker in snapshot.workers:
            for device, size in worker.planned_bytes.items():
                planned.add_metric([worker.model_id, device], size)
            for device, size in worker.taken_bytes.items():
                taken.add_metric([worker.model_id, device], size)
            speed.add_metric([worker.model_id], worker.tokens_per_s)
        yield planned
        yield taken
        yield speed
        pressure = GaugeMetricFamily("coolhead_pressure_level", "The guard's level, 0 is normal")
        pressure.add_metric([], int(snapshot.pressure))
        yield pressure
