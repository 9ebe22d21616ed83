"""The speed of a board's host, for estimates: its products, and the work around an NPU's products.

The rates are those of an RK3588's host, four Cortex-A76.  Estimates for other boards use them too,
because no other host was measured.
"""

from typing import NamedTuple

from npurt.backend.estimates import Estimate
from npurt.device.device import MatMul
from npurt.quant import types

TITLE = "an RK3588 (four A76)"
# With llama.cpp: 73 tokens/s of a prompt are 146e9 operations/s [HW: rk-llama, Gemma3-1B Q8_0];
# memory: 25.6e9 bytes/s (marfrit/rk-llama.cpp).
CPU_MACS_S = 73e9
CPU_BYTES_S = 25.6e9


class HostSpeed(NamedTuple):
    """One estimate of the speed of a board's host."""

    sync_bytes_s: float  # bytes/s of cache maintenance
    unit_s: float  # seconds of other ops for each token and element of the layers' widths
    layer_s: float  # seconds of other ops for each layer, independent of the tokens


# [HW] sync_bytes_s: 1.4 GB less to sync saved 127 ms with five threads (npu-notes,
#   bo-sync-cost.md).
# unit_s, layer_s: from npurt's loops on an x86-64 server (bench/RESULTS.md).  Low assumes this
#   speed on each of four fast cores.  Expected assumes that one Cortex-A76 takes 2.5 times as long,
#   high 5 times.
HOST = Estimate(
    HostSpeed(12e9, 2.5e-9, 50e-6),
    HostSpeed(8e9, 6.5e-9, 300e-6),
    HostSpeed(2e9, 25e-9, 600e-6),
)


def host_product_seconds(op: MatMul) -> float:
    """Return the time of *op* on the host's four A76, limited by arithmetic or memory."""
    fmt = types.BY_NAME[op.format]
    read = op.n * op.k * fmt.block_bytes / fmt.block
    return max(op.m * op.k * op.n / CPU_MACS_S, read / CPU_BYTES_S)
