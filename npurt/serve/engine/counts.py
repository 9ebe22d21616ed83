"""What an engine says of the device of its model."""

from npurt.llm.decode.model import Llama


def device_counts(llm: Llama) -> dict[str, float]:
    """Return counts of the device by name: fallbacks, checked products, restarts."""
    report = llm.report()
    return {
        "fallbacks": float(len(report.fallbacks())),
        "verified": float(sum(row.verified for row in report.rows)),
        "wrong": float(sum(row.failed for row in report.rows)),
        "device_restarts": float(llm.device.restarts()),
    }
