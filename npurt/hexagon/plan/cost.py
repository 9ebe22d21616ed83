"""How long products take on a Hexagon, by a model and not by measurement: low, expected and high.

A call takes the longer of two: its packets by all threads, and its bytes from memory; besides, what
a call costs.  The packets are those of our kernels (`packets`); the speeds of a chip are published
measurements of other programs.  npurt itself was never timed on a DSP.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from npurt.device import MatMul
from npurt.hexagon.plan import packets


@dataclass(frozen=True, slots=True)
class Speed:
    """One estimate of the speed of a board.  Sources are below, with the values."""

    packet_cycles: float  # from one packet of a thread to its next
    bytes_s: float  # that all threads read
    call_s: float  # of FastRPC, from call to return, besides the work
    host_s: float  # of npurt's host code, for each call


@dataclass(frozen=True, slots=True)
class Board:
    """A board, and its speed by the lowest, expected and highest time."""

    name: str
    arch: int
    threads: int  # with HVX
    clock_hz: float
    speeds: tuple[Speed, Speed, Speed]


# [HW] is strongtz/cdsp_peak, results/v68.md: this board, `--power max`, kernels of another program.
# threads, clock_hz [HW]: hvx128=2; 655,359,972 cycles in 456.9 ms.
# packet_cycles [HW]: 2 of fp16-vmpyacc (two threads, 128 operations a cycle).  Expected: 2.05, of
#   ggml's Q8_0 on a v79 (llama.cpp issue 18139).  High: 4, if two vrmpy of a packet wait for each
#   other as those of int8-vrmpyacc did, one in two cycles.  Never measured with our kernels.
# bytes_s [HW]: 17.6e9 written; 8.44e9 read.  Expected: 12.6e9, a 1B model of 1.32 GB at 9.6 tokens
#   a second (pingu_98/llamacpp_on_dragon_wing_q6a_guide), with all else that a token takes.  Never
#   measured with the prefetch of our kernels.
# call_s [HW]: 41.85 us a call when two threads call at once, so 84 us each.  High: "a few hundred"
#   microseconds of cache maintenance (Hexagon SDK, System optimizations).  Never measured with our
#   calls.
# host_s: 50 us on an x86-64 server (bench/hexagon_host.py).  That a core of this board takes 2.5
#   times as long, or 5 times, is assumed, as for the RK3588.
Q6A = Board(
    "Radxa Dragon Q6A (QCS6490)", 68, 2, 1.434e9,
    (
        Speed(2.0, 17.6e9, 42e-6, 50e-6),
        Speed(2.05, 12.6e9, 84e-6, 125e-6),
        Speed(4.0, 8.44e9, 300e-6, 250e-6),
    ),
)  # fmt: skip


def call_seconds(products: Sequence[MatMul], board: Board, speed: Speed) -> float:
    """Return how long one call does *products*, which share their x."""
    costs = [
        packets.product(op, board.arch, board.threads, same_x=i > 0)
        for i, op in enumerate(products)
    ]
    quantising = min(board.threads, -(-products[0].m // packets.PANEL))
    issued = sum(each.quantise / quantising + each.multiply / board.threads for each in costs)
    issue = (issued + packets.BATCH / board.threads) * speed.packet_cycles / board.clock_hz
    read = sum(each.weight_bytes + each.other_bytes for each in costs) / speed.bytes_s
    return max(issue, read) + speed.call_s + speed.host_s
