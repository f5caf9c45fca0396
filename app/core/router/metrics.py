"""What `/metrics` shows, in Prometheus' text format. Counted by the dispatcher, on the core loop."""

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from app.core.handle import Snapshot
from app.core.router.scheduler import ModelView

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_TTFT_BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 90, 180)
_WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)


class Metrics:
    """Thread: core loop only.

    Args:
        views: the scheduler's models, read when metrics are asked for.
        snapshot: the newest snapshot, for memory and pressure.
    """

    def __init__(
        self, views: Callable[[], Iterable[ModelView]], snapshot: Callable[[], Snapshot]
    ) -> None:
        # Half of all lines otherwise, for times that nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # it is the one untyped function
        self._registry = CollectorRegistry(auto_describe=False)
        self._children: dict[tuple[Counter, tuple[str, ...]], Counter] = {}
        self._observers: dict[tuple[Histogram, tuple[str, ...]], Histogram] = {}
        self.requests = Counter(
            "coolhead_requests", "Requests by outcome", ["outcome"], registry=self._registry
        )
        self.decisions = Counter(
            "coolhead_decisions", "Decisions by rule", ["rule", "target"], registry=self._registry
        )
        self.refusals = Counter(
            "coolhead_refusals", "Refused requests by reason", ["reason"], registry=self._registry
        )
        self.fallbacks = Counter(
            "coolhead_fallbacks", "Fallbacks by reason", ["reason"], registry=self._registry
        )
        self.cache_hits = Counter(
            "coolhead_cache_hits", "Answers from the response cache", registry=self._registry
        )
        self.tokens = Counter(
            "coolhead_tokens", "Tokens by kind", ["model", "kind"], registry=self._registry
        )
        self.limits = Counter(
            "coolhead_limits", "Answers ended by a limit", ["limit"], registry=self._registry
        )
        self.ttft = Histogram(
            "coolhead_ttft_seconds",
            "From request to first content",
            ["model"],
            buckets=_TTFT_BUCKETS_S,
            registry=self._registry,
        )
        self.wait = Histogram(
            "coolhead_queue_seconds",
            "From request to slot",
            ["model"],
            buckets=_WAIT_BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(_Live(views, snapshot))

    def count(self, counter: Counter, *labels: str) -> Counter:
        """`counter` for these labels; the library's own look-up takes 5 microseconds."""
        key = (counter, labels)
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = counter.labels(*labels)
        return child

    def watch(self, histogram: Histogram, *labels: str) -> Histogram:
        """`histogram` for these labels."""
        key = (histogram, labels)
        child = self._observers.get(key)
        if child is None:
            child = self._observers[key] = histogram.labels(*labels)
        return child

    def render(self) -> bytes:
        return generate_latest(self._registry)


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
