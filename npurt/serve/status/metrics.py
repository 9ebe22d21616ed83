"""/metrics in the format of Prometheus; names as llama.cpp's where it has them."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.model.offer import Offer, Offers

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
    "npurt:fallbacks": "Reasons for which the CPU computes what was planned for the device.",
    "npurt:verified": "Products that were checked.",
    "npurt:wrong": "Checked products that were wrong, and were computed again.",
}
GAUGES = {
    "llamacpp:requests_processing": "Texts that are being generated.",
    "llamacpp:requests_deferred": "Texts that wait.",
    "npurt:ready": "1 when the engine takes requests.",
}


async def metrics(offers: Offers, request: Request) -> Answer:
    """Return all counts; with several models, each has the label ``model``."""
    found = offers.offers()
    stats = await asyncio.gather(*map(engine_stats, found))
    registry = CollectorRegistry()
    registry.register(Readings(
        {offer.model.name: values(offer, engine)
         for offer, engine in zip(found, stats, strict=True)}
    ))  # fmt: skip
    return generate_latest(registry)


async def engine_stats(offer: Offer) -> Mapping[str, float]:
    """Return the counts of the engine; none if it does not run."""
    return await offer.front.engine.stats() if offer.front else {}


def values(offer: Offer, engine: Mapping[str, float]) -> dict[str, float]:
    """Return each count by its name."""
    counts, front = offer.counts, offer.front
    ready = front.engine.ready if front else None
    active = front.active if front else 0
    running = min(active, ready.sequences if ready else 0)
    return {
        "llamacpp:prompt_tokens": counts.prompt_tokens - counts.cached_tokens,
        "llamacpp:tokens_predicted": counts.completion_tokens,
        "llamacpp:n_decode": engine.get("steps", 0.0),
        "llamacpp:requests_processing": running,
        "llamacpp:requests_deferred": active - running,
        "npurt:requests": counts.requests,
        "npurt:requests_refused": counts.refused,
        "npurt:cached_tokens": counts.cached_tokens,
        "npurt:engine_restarts": front.engine.restarts if front else 0,
        "npurt:ready": float(front.engine.alive) if front else 0.0,
        **{f"npurt:{name}": engine.get(name, 0.0) for name in ("fallbacks", "verified", "wrong")},
    }


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
