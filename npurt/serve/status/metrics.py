"""/metrics: the server's counters and gauges."""

import asyncio
from collections.abc import Mapping

from npurt.serve.front.offer import ModelPool, ModelStatus
from npurt.serve.http.endpoint import Answer, HttpRequest

OF_THE_DEVICE = (
    "fallbacks", "verified", "wrong", "device_restarts", "macs", "npu_macs", "op_seconds",
    "npu_seconds",
)  # fmt: skip


async def metrics(offers: ModelPool, request: HttpRequest) -> Answer:
    """Return all metrics; with several models, each metric has the label ``model``."""
    found = offers.offers()
    stats = await asyncio.gather(*map(engine_stats, found))
    from npurt.serve.status.prometheus import text  # 1.5 MB, loaded at first use

    return text({
        offer.model.name: values(offer, engine)
        for offer, engine in zip(found, stats, strict=True)
    })  # fmt: skip


async def engine_stats(offer: ModelStatus) -> Mapping[str, float]:
    """Return the engine's counts by name; {} if the engine does not run."""
    return await offer.front.engine.stats() if offer.front else {}


def values(offer: ModelStatus, engine: Mapping[str, float]) -> dict[str, float]:
    """Return the value of each metric by name."""
    counts, front = offer.counts, offer.front
    ready = front.engine.ready if front else None
    active = front.active if front else 0
    running = min(active, ready.sequences if ready else 0)
    return {
        "llamacpp:prompt_tokens": counts.prompt_tokens - counts.cached_tokens,
        "llamacpp:prompt_seconds": counts.prompt_seconds,
        "llamacpp:prompt_tokens_seconds": _rate(
            counts.prompt_tokens - counts.cached_tokens, counts.prompt_seconds
        ),
        "llamacpp:tokens_predicted": counts.completion_tokens,
        "llamacpp:tokens_predicted_seconds": counts.generation_seconds,
        "llamacpp:predicted_tokens_seconds": _rate(counts.timed_tokens, counts.generation_seconds),
        "llamacpp:n_tokens_max": counts.longest,
        "llamacpp:spec_decode_num_draft_tokens": engine.get("drafted", 0.0),
        "llamacpp:spec_decode_num_accepted_tokens": engine.get("accepted", 0.0),
        "llamacpp:n_decode": engine.get("steps", 0.0),
        "llamacpp:requests_processing": running,
        "llamacpp:requests_deferred": active - running,
        "npurt:requests": counts.requests,
        "npurt:requests_refused": counts.refused,
        "npurt:cached_tokens": counts.cached_tokens,
        "npurt:queue_seconds": counts.queue_seconds,
        "npurt:engine_restarts": front.engine.restarts if front else 0,
        "npurt:ready": float(front.engine.alive) if front else 0.0,
        **{f"npurt:{name}": engine.get(name, 0.0) for name in OF_THE_DEVICE},
        "npurt:npu_share": npu_share(engine) or 0.0,
    }


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def npu_share(engine: Mapping[str, float]) -> float | None:
    """Return the share of NPUs in the engine's multiply-adds; None if nothing ran."""
    macs = engine.get("macs")
    return engine.get("npu_macs", 0.0) / macs if macs else None


async def summary(offers: ModelPool) -> str:
    """Return a sentence about all requests: tokens, the NPU's share of the work, fallbacks."""
    found = offers.offers()
    stats = await asyncio.gather(*map(engine_stats, found))
    every = [values(offer, engine) for offer, engine in zip(found, stats, strict=True)]
    total = {name: sum(each[name] for each in every) for name in every[0]}
    share = npu_share({"macs": total["npurt:macs"], "npu_macs": total["npurt:npu_macs"]})
    on_npu = "nothing ran" if share is None else f"{100 * share:.1f} % on an NPU"
    if share == 0:
        on_npu = "all on the CPU, no NPU in use"
    return (
        f"{total['npurt:requests']:.0f} requests: "
        f"{total['llamacpp:prompt_tokens']:.0f} tokens of prompts evaluated, "
        f"{total['llamacpp:tokens_predicted']:.0f} generated; "
        f"work: {total['npurt:macs'] / 1e9:.1f} G multiply-adds, {on_npu}; "
        f"{total['npurt:fallbacks']:.0f} fallbacks, {total['npurt:wrong']:.0f} wrong products"
    )
