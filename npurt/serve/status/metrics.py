"""/metrics in the format of Prometheus; names as llama.cpp's where it has them."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.model.front import Front

# Source of the names with "llamacpp:": llama.cpp tools/server/README.md, GET /metrics.
COUNTERS = {
    "llamacpp:prompt_tokens": "Tokens of prompts that were read.",
    "llamacpp:tokens_predicted": "Tokens that were generated.",
    "llamacpp:n_decode": "Steps of the engine.",
    "npurt:requests": "Requests that began.",
    "npurt:requests_refused": "Requests that were refused because the queue was full.",
    "npurt:cached_tokens": "Tokens of prompts that were in the cache.",
    "npurt:engine_restarts": "Processes of the engine that were started in place of another.",
    "npurt:fallbacks": "Reasons for which the CPU computes what was planned for the device.",
    "npurt:verified": "Products that were checked.",
    "npurt:wrong": "Checked products that were wrong, and were computed again.",
}
GAUGES = {
    "llamacpp:requests_processing": "Texts that are being generated.",
    "llamacpp:requests_deferred": "Texts that wait.",
    "npurt:ready": "1 when the engine takes requests.",
}


async def metrics(front: Front, request: Request) -> Answer:
    """Return all counts."""
    registry = CollectorRegistry()
    registry.register(Counts(values(front, await front.engine.stats())))
    return generate_latest(registry)


def values(front: Front, engine: Mapping[str, float]) -> dict[str, float]:
    """Return each count by its name."""
    counts, ready = front.counts, front.engine.ready
    running = min(front.active, ready.sequences if ready else 0)
    return {
        "llamacpp:prompt_tokens": counts.prompt_tokens - counts.cached_tokens,
        "llamacpp:tokens_predicted": counts.completion_tokens,
        "llamacpp:n_decode": engine.get("steps", 0.0),
        "llamacpp:requests_processing": running,
        "llamacpp:requests_deferred": front.active - running,
        "npurt:requests": counts.requests,
        "npurt:requests_refused": counts.refused,
        "npurt:cached_tokens": counts.cached_tokens,
        "npurt:engine_restarts": front.engine.restarts,
        "npurt:ready": float(front.engine.alive),
        **{f"npurt:{name}": engine.get(name, 0.0) for name in ("fallbacks", "verified", "wrong")},
    }


class Counts:
    """A collector of one reading."""

    def __init__(self, found: Mapping[str, float]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        for name, about in COUNTERS.items():
            yield CounterMetricFamily(name, about, value=self._found[name])
        for name, about in GAUGES.items():
            yield GaugeMetricFamily(name, about, value=self._found[name])
