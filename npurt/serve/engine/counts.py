"""Count the events of a model's device for the engine's statistics."""

from npurt.llm.decode.model import Llama


def device_counts(llm: Llama) -> dict[str, float]:
    """Return the device's counts by name: fallbacks, verified and wrong products, restarts."""
    report = llm.report()
    return {
        "fallbacks": float(len(report.fallbacks())),
        "verified": float(sum(row.verified for row in report.rows)),
        "wrong": float(sum(row.failed for row in report.rows)),
        "device_restarts": float(llm.device.restarts()),
    }
