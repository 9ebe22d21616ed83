"""Write metrics in Prometheus' format, with llama.cpp's name where llama.cpp has the metric."""

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily

# Source of the names with "llamacpp:": llama.cpp tools/server/README.md, GET /metrics.
COUNTERS = {
    "llamacpp:prompt_tokens": "Prompt tokens evaluated (without cached ones).",
    "llamacpp:prompt_seconds": "Seconds of the evaluation of prompts, summed over sequences.",
    "llamacpp:tokens_predicted": "Tokens generated.",
    "llamacpp:tokens_predicted_seconds": "Seconds of generation, summed over sequences.",
    "llamacpp:spec_decode_num_draft_tokens": "Draft tokens verified.",
    "llamacpp:spec_decode_num_accepted_tokens": "Draft tokens accepted.",
    "llamacpp:n_decode": "Steps of the engine.",
    "npurt:requests": "Requests started.",
    "npurt:requests_refused": "Requests refused because the queue was full.",
    "npurt:cached_tokens": "Prompt tokens found in the prefix cache.",
    "npurt:queue_seconds": "Seconds in the queue, summed over sequences.",
    "npurt:engine_restarts": "Restarts of the engine's process.",
    "npurt:device_restarts": "Times the device was lost and reopened.",
    "npurt:fallbacks": "Distinct reasons for which the CPU computed work planned for the device.",
    "npurt:macs": "Multiply-adds of matrix products.",
    "npurt:npu_macs": "Multiply-adds of matrix products that an NPU computed.",
    "npurt:op_seconds": "Seconds of all ops.",
    "npurt:npu_seconds": "Seconds of ops on an NPU.",
    "npurt:verified": "Matrix products verified.",
    "npurt:wrong": "Verified products that were wrong, and were computed again.",
}
GAUGES = {
    "llamacpp:requests_processing": "Sequences that are running.",
    "llamacpp:requests_deferred": "Sequences that are waiting.",
    "llamacpp:prompt_tokens_seconds": "Mean rate of the evaluation of prompts, in tokens/s.",
    "llamacpp:predicted_tokens_seconds": "Mean rate of generation, in tokens/s.",
    "llamacpp:n_tokens_max": "Largest number of tokens of a prompt and its completion.",
    "npurt:npu_share": "Share of the multiply-adds that an NPU computed, 0 to 1.",
    "npurt:ready": "1 if the engine accepts requests, else 0.",
}


def text(found: Mapping[str, Mapping[str, float]]) -> bytes:
    """Return the metrics in Prometheus' text format.

    Args:
        found: The values of the metrics by model and name.
    """
    registry = CollectorRegistry()
    registry.register(Readings(found))
    return generate_latest(registry)


class Readings:
    """A Prometheus collector of one reading of all models' metrics."""

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
