"""Count the events of a model's device for the engine's statistics."""

from npurt.llm.decode.llama import Llama
from npurt.settings import HOSTS


def device_counts(llm: Llama) -> dict[str, float]:
    """Return the device's counts by name: work, fallbacks, verified and wrong products, restarts.

    Work is in multiply-adds and seconds: of all devices, and of NPUs.
    """
    report = llm.report()
    on_npus = [row for row in report.rows if row.actual not in HOSTS]
    return {
        "macs": float(report.macs()),
        "npu_macs": float(report.npu_macs()),
        "op_seconds": sum(row.seconds for row in report.rows),
        "npu_seconds": sum(row.seconds for row in on_npus),
        "fallbacks": float(len(report.fallbacks())),
        "verified": float(sum(row.verified for row in report.rows)),
        "wrong": float(sum(row.failed for row in report.rows)),
        "device_restarts": float(llm.device.restarts()),
    }
