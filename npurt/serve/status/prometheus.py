"""Counts in the format of Prometheus; names as llama.cpp's where it has them."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily

# Source of the names with "llamacpp:": llama.cpp tools/server/README.md, GET /metrics.
COUNTERS = {
    "llamacpp:prompt_tokens": "Tokens of prompts that were read.",
    "llamacpp:tokens_predicted": "Tokens that were generated.",
    "llamacpp:n_decode": "Steps of the engine.",
    "npurt:requests": "Requests that began.",
    "npurt:requests_refused": "Requests that were refused because the queue was full.",
    "npurt:cached_tokens": "Tokens of prompts that were in the cache.",
    "npurt:engine_restarts": "Processes of the engine that were started in place of another.",
    "npurt:device_restarts": "Times that the device was lost and opened again.",
    "npurt:fallbacks": "Reasons for which the CPU computes what was planned for the device.",
    "npurt:verified": "Products that were checked.",
    "npurt:wrong": "Checked products that were wrong, and were computed again.",
}
GAUGES = {
    "llamacpp:requests_processing": "Texts that are being generated.",
    "llamacpp:requests_deferred": "Texts that wait.",
    "npurt:ready": "1 when the engine takes requests.",
}


def text(found: Mapping[str, Mapping[str, float]]) -> bytes:
    """Return *found*, the counts of each model by name."""
    registry = CollectorRegistry()
    registry.register(Readings(found))
    return generate_latest(registry)


class Readings:
    """A collector of one reading of each model."""

    def __init__(self, found: Mapping[str, Mapping[str, float]]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        labels = ["model"] if len(self._found) > 1 else []
        for name, about in COUNTERS.items():
            yield self._filled(CounterMetricFamily(name, about, labels=labels), name)
        for name, about in GAUGES.items():
            yield self._filled(GaugeMetricFamily(name, about, labels=labels), name)

    def _filled(self, metric: Family, name: str) -> Family:
        for model, found in self._found.items():
            metric.add_metric([model] if len(self._found) > 1 else [], found[name])
        return metric
