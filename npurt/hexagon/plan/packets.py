"""Packets of instructions that the kernels execute, and bytes that they move, before any is run.

A packet is what a hardware thread issues at a time.  `STEPS` and the other constants are the
kernels' own packets as qemu-hexagon counts them: `python bench/hexagon_kernels.py --model`.
Pure: no device, no C.  `tests/hexagon/test_packets.py` has what is left out, and how much it is.
"""

from collections.abc import Iterator
from typing import NamedTuple

from npurt.device import MatMul
from npurt.hexagon.layout import formats, images

PANEL = 4  # rows of x that a kernel takes together: NPURT_PANEL
GROUP = 4  # tiles that a kernel for one row takes together: TILES of dsp/kernels/gemv.h
SHARE = 256 << 10  # bytes of tiles that a call of the kernels takes: dsp/execute.c


class Steps(NamedTuple):
    """Packets of the inner loops, for 64 columns of w."""

    panel: float  # four rows of x, a tile
    group: float  # one row, four tiles
    tile: float  # one row, a tile that is left over


#            v68, and v69 and newer, whose multiplications fit into fewer packets
STEPS = {
    "q4": (Steps(41, 49, 17), Steps(42, 49, 17)),
    "q4_offset": (Steps(45, 52, 19), Steps(43, 52, 19)),
    "lut": (Steps(46, 74, 22), Steps(46, 88, 21)),
    "q8": (Steps(42, 68, 20), Steps(40, 68, 19)),
    "q8_offset": (Steps(46, 72, 21), Steps(43, 72, 21)),
    "q8_g16": (Steps(55, 77, 23), Steps(50, 80, 21)),
    "q8_g16_offset": (Steps(74, 95, 26), Steps(61, 92, 24)),
    "q16": (Steps(76, 141, 38), Steps(73, 139, 35)),
    "per_channel": (Steps(32, 64, 16.5), Steps(32, 64, 16.5)),
}
# Beside the steps: float32 results, loops, pointers.  They differ by up to 10 between kernels.
FIXED = Steps(36, 48, 29)
CALL = 30  # of the kernels
CALL_OF_PANEL = 40  # or of a single row, besides
QUANTISE_ROW, QUANTISE_STEP = 220, 15.2  # of each row of x
OP = 500  # of each product: reading and sharing it out, cache maintenance
BATCH = 600  # of each call, whatever the products are


class Cost(NamedTuple):
    """What a product takes of a DSP."""

    quantise: float  # packets; a thread takes four rows of x at least
    multiply: float  # packets
    weight_bytes: int  # that are read, once
    other_bytes: int  # of x and the results, in float32


def product(op: MatMul, arch: int, threads: int = 4, *, same_x: bool = False) -> Cost:
    """Return what *op* takes of a Hexagon v*arch*, which has a kernel for it.

    Args:
        op: Rows of x times a weight.
        arch: Version of the DSP.
        threads: Among which the skel divides the tiles.
        same_x: The product before it in the batch has quantised x.
    """
    fmt = formats.BY_NAME[op.format]
    step, steps = STEPS[fmt.kernel][arch >= 69], images.steps(op.k)
    panel, group, tile = (a + steps * b for a, b in zip(FIXED, step, strict=True))
    panels, rows = divmod(op.m, PANEL)
    multiply: float = OP
    for tiles in _calls(op, images.tile_bytes(fmt, op.k), threads):
        groups, left = divmod(tiles, GROUP)
        multiply += CALL + (panels + rows) * CALL_OF_PANEL
        multiply += panels * tiles * panel + rows * (groups * group + left * tile)
    quantise = 0 if same_x else op.m * (QUANTISE_ROW + steps * QUANTISE_STEP)
    x_bytes = 0 if same_x else 4 * op.m * op.k
    nbytes = images.image_bytes(fmt, op.n, op.k)
    return Cost(quantise, multiply, nbytes, x_bytes + 4 * op.m * op.n)


def _calls(op: MatMul, tile_bytes: int, threads: int) -> Iterator[int]:
    """Yield the tiles of each call of the kernels, as dsp/execute.c divides them."""
    tiles = -(-op.n // images.TILE)
    groups = -(-tiles // GROUP)
    most = tiles if op.m in (1, PANEL) else max(1, SHARE // tile_bytes)
    for thread in range(threads):
        first = groups * thread // threads * GROUP
        last = min(groups * (thread + 1) // threads * GROUP, tiles)
        yield from (min(most, last - start) for start in range(first, last, most))
