"""Compute how many instruction packets a product executes and how many bytes it moves.

A packet is the group of instructions that a hardware thread issues at once.  `STEPS` and the other
constants are packet counts of npurt's kernels in qemu-hexagon; `python bench/hexagon_kernels.py
--model` prints them.  No device is needed.  `tests/hexagon/test_packets.py` lists what the counts
omit, and how much.
"""

from collections.abc import Iterator
from typing import NamedTuple

from npurt.device.device import MatMul
from npurt.hexagon.layout import formats, images

PANEL = 4  # rows of x that a kernel multiplies together: NPURT_PANEL
GROUP = 4  # tiles that the kernel for one row multiplies together: TILES of dsp/kernels/gemv.h
SHARE = 256 << 10  # maximum bytes of tiles in one call of a kernel: dsp/execute.c


class LoopPackets(NamedTuple):
    """Packets of the inner loops for 64 columns of w."""

    panel: float  # for four rows of x and one tile
    group: float  # for one row and four tiles
    tile: float  # for one row and one tile


# For v68, and for v69 and newer, which need fewer packets for multiplications.
STEPS = {
    "q4": (LoopPackets(41, 49, 17), LoopPackets(42, 49, 17)),
    "q4_offset": (LoopPackets(45, 52, 19), LoopPackets(43, 52, 19)),
    "lut": (LoopPackets(46, 74, 22), LoopPackets(46, 88, 21)),
    "q8": (LoopPackets(42, 68, 20), LoopPackets(40, 68, 19)),
    "q8_offset": (LoopPackets(46, 72, 21), LoopPackets(43, 72, 21)),
    "q8_g16": (LoopPackets(55, 77, 23), LoopPackets(50, 80, 21)),
    "q8_g16_offset": (LoopPackets(74, 95, 26), LoopPackets(61, 92, 24)),
    "q16": (LoopPackets(76, 141, 38), LoopPackets(73, 139, 35)),
    "per_channel": (LoopPackets(32, 64, 16.5), LoopPackets(32, 64, 16.5)),
}
# Packets outside the steps: conversion to float32, loops, pointers.  Kernels differ by up to 10.
FIXED = LoopPackets(36, 48, 29)
CALL = 30  # per call of a kernel
CALL_OF_PANEL = 40  # per panel or single row of a call
QUANTISE_ROW, QUANTISE_STEP = 220, 15.2  # per row of x, and per step of a row
OP = 500  # per product: checks, division among threads, cache maintenance
BATCH = 600  # per batch, independent of its products


class ProductCost(NamedTuple):
    """The cost of a product on a DSP."""

    quantise: float  # packets; a thread quantises at least four rows of x
    multiply: float  # packets
    weight_bytes: int  # bytes of the image, read once
    other_bytes: int  # bytes of x and of the results, in float32


def product(op: MatMul, arch: int, threads: int = 4, *, same_x: bool = False) -> ProductCost:
    """Return the cost of *op* on a Hexagon v*arch* that has a kernel for its format.

    Args:
        op: The product.
        arch: The version of the DSP.
        threads: The threads that divide the tiles among themselves.
        same_x: Whether the previous product of the batch has quantised x.
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
    return ProductCost(quantise, multiply, nbytes, x_bytes + 4 * op.m * op.n)


def _calls(op: MatMul, tile_bytes: int, threads: int) -> Iterator[int]:
    """Yield the tiles of each call of the kernels, as dsp/execute.c divides them."""
    tiles = -(-op.n // images.TILE)
    groups = -(-tiles // GROUP)
    limit = tiles if op.m in (1, PANEL) else max(1, SHARE // tile_bytes)
    for thread in range(threads):
        first = groups * thread // threads * GROUP
        last = min(groups * (thread + 1) // threads * GROUP, tiles)
        yield from (min(limit, last - start) for start in range(first, last, limit))
