"""Model the time of products on a Hexagon, with a low, an expected and a high estimate.

The time of a call is the time to execute its packets on all threads or the time to read its bytes
from memory, whichever is longer, plus a fixed overhead.  `packets` counts the packets of npurt's
kernels.  The speeds of a chip are published measurements of other programs.  npurt itself was never
timed on a DSP.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from npurt.device.device import MatMul
from npurt.hexagon.plan import packets


@dataclass(frozen=True, slots=True)
class Speed:
    """One estimate of a board's speed.  The comment before `Q6A` names the sources."""

    packet_cycles: float  # cycles from one packet of a thread to its next packet
    bytes_s: float  # bytes per second that all threads together read
    call_s: float  # seconds that FastRPC adds to the work of a call
    host_s: float  # seconds of npurt's host code per call


@dataclass(frozen=True, slots=True)
class Board:
    """A board with three estimates of its speed."""

    name: str
    arch: int  # version of the DSP
    threads: int  # hardware threads with HVX
    clock_hz: float
    speeds: tuple[Speed, Speed, Speed]  # for the low, the expected and the high time


# [HW] is strongtz/cdsp_peak, results/v68.md: measured on this board with `--power max` and the
#   kernels of another program.  None of these speeds was measured with npurt's kernels or calls.
# threads, clock_hz: hvx128=2; 655,359,972 cycles in 456.9 ms [HW].
# packet_cycles: low 2, measured for fp16-vmpyacc: two threads, 128 operations a cycle [HW].
#   Expected 2.05, from ggml's Q8_0 on a v79 (llama.cpp issue 18139).  High 4: if the two vrmpy of a
#   packet wait for each other, as in int8-vrmpyacc, which issued one in two cycles [HW].
# bytes_s: low time 17.6e9, measured for writes; high time 8.44e9, measured for reads [HW].
#   Expected 12.6e9, from a 1B model of 1.32 GB at 9.6 tokens a second, which includes the other
#   work of a token (pingu_98/llamacpp_on_dragon_wing_q6a_guide).
# call_s: low 42 us.  Two threads that call at the same time complete one call every 41.85 us [HW].
#   Expected 84 us, the time of one such call.  High 300 us: "a few hundred" microseconds of cache
#   maintenance (Hexagon SDK, System optimizations).
# host_s: low 50 us, measured on an x86-64 server (bench/hexagon_host.py).  Expected and high assume
#   that a core of this board is 2.5 and 5 times slower, as for the RK3588.
Q6A = Board(
    "Radxa Dragon Q6A (QCS6490)", 68, 2, 1.434e9,
    (
        Speed(2.0, 17.6e9, 42e-6, 50e-6),
        Speed(2.05, 12.6e9, 84e-6, 125e-6),
        Speed(4.0, 8.44e9, 300e-6, 250e-6),
    ),
)  # fmt: skip


def call_seconds(products: Sequence[MatMul], board: Board, speed: Speed) -> float:
    """Return the seconds of one call that computes *products*, which share their x."""
    costs = [
        packets.product(op, board.arch, board.threads, same_x=i > 0)
        for i, op in enumerate(products)
    ]
    quantising = min(board.threads, -(-products[0].m // packets.PANEL))
    issued = sum(each.quantise / quantising + each.multiply / board.threads for each in costs)
    issue = (issued + packets.BATCH / board.threads) * speed.packet_cycles / board.clock_hz
    read = sum(each.weight_bytes + each.other_bytes for each in costs) / speed.bytes_s
    return max(issue, read) + speed.call_s + speed.host_s
