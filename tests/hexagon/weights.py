"""Images of random or extreme weights of every format, from the bytes of GGUF blocks."""

import numpy as np

from npurt.hexagon.layout import images
from npurt.quant.blocks import DTYPES
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME as GGUF

SCALES = ("d", "dmin", "m")


def tensor(rng, name, n, k, extreme=0):
    """Return a QTensor of random bytes with similar scales; *extreme* 1 or -1: equal codes."""
    fmt = GGUF[name]
    if fmt.block == 1:
        values = rng.standard_normal((n, k)) if not extreme else np.full((n, k), float(extreme))
        return QTensor.quantize(values.astype(np.float32), name)
    raw = rng.integers(0, 256, (n, k // fmt.block, fmt.block_bytes), dtype=np.uint8)
    if extreme:
        raw[:] = 0xFF if extreme > 0 else 0x00
    blocks = raw.view(DTYPES[fmt.name])[..., 0]
    for field in SCALES:
        if field in DTYPES[fmt.name].names:
            size = rng.uniform(0.5, 2, blocks.shape) if not extreme else 1.0
            blocks[field] = size * (-0.125 if field == "m" else 0.125)
    if name == "mxfp4":
        blocks["e"] = rng.integers(124, 130, blocks.shape) if not extreme else 127
    return QTensor(blocks, name)


def weight(rng, name, n, k, extreme=0):
    """Return the image of a random tensor, or of int8 codes for i8."""
    if name == "i8":
        codes = rng.integers(-128, 128, (n, k), dtype=np.int8)
        return images.pack_i8(codes, rng.uniform(0.5, 2, n).astype(np.float32))
    return images.pack(tensor(rng, name, n, k, extreme))


def columns(name, k):
    """Return the least multiple of the format's block that holds *k* columns."""
    block = 256 if name.endswith("_k") or name == "iq4_xs" else 32
    return -(-k // block) * block


def groups(name):
    """Return the groupings of activations that a format accepts."""
    return (0,) if name == "i8" else (32, 128)
