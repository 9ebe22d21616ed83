"""Programs that every kernel set must run with equal results, and the data they work on.

A case is a function that adds ops to a program and returns the arrays they write.  Its data depend
on nothing but the seed.
"""

import zlib

import numpy as np

from npurt.cpu import abi
from npurt.cpu.engine import Input, empty
from npurt.cpu.memory import allocate
from npurt.cpu.program import Heads, Image
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME, find

INTEGER = tuple(name for name, fmt in BY_NAME.items() if fmt.block > 1)
DENSE = ("f32", "f16", "bf16")

# What a float16 scale can be, and what makes kernels differ: signs, zero, subnormals, the ends.
SCALES = np.array([0, 1, -1, 0.0123, -0.5, 6e-8, -6e-8, 6.1e-5, 65504, -65504, 3.3e-3], np.float16)


def rng_of(*seed):
    return np.random.default_rng(zlib.crc32(repr(seed).encode()))


def weight(rng, fmt, n, k, scales=SCALES):
    """Return a tensor ``[n, k]`` of random codes whose float16 fields are drawn from *scales*.

    None leaves those random bytes as well: NaN and infinity among them.
    """
    fmt = find(fmt)
    nbytes = n * fmt.row_bytes(k)
    tensor = QTensor.from_bytes(bytearray(rng.bytes(nbytes)), fmt, (n, k))
    if scales is not None and fmt.dtype.names:
        for name in {"d", "m", "dmin"} & set(fmt.dtype.names):
            tensor.blocks[name] = rng.choice(scales, tensor.blocks.shape)
    if scales is not None and "e" in (fmt.dtype.names or ()):
        tensor.blocks["e"] = rng.choice(np.array([0, 1, 2, 100, 127, 130, 150], np.uint8),
                                        tensor.blocks.shape)  # fmt: skip
    return tensor


def activations(rng, m, k):
    """Return float32 ``[m, k]`` whose blocks of 32 are ordinary, saturated, zero, tiny or huge."""
    x = rng.standard_normal((m, k // 32, 32), dtype=np.float32)
    kinds = rng.integers(0, 6, (m, k // 32))
    x[kinds == 1] = np.sign(x[kinds == 1]) * np.float32(2.5)  # every code is 127 or -127
    x[kinds == 2] = 0
    x[kinds == 3] *= np.float32(1e-38)  # scales are subnormal, or the block vanishes
    x[kinds == 4] *= np.float32(1e6)
    return x.reshape(m, k)


def packed(program, tensor):
    """Add the op that lays *tensor* out; return its image."""
    n, k = tensor.shape
    size = abi.lib().npurt_image_bytes(tensor.format.number, n, k)
    image = Image(allocate(size)[:size], n, k, tensor.format)
    program.pack(np.ascontiguousarray(tensor.blocks), image)
    return image


def matmul(program, tensor, x):
    """Pack, quantise, multiply: return image, what quantising made, and the product."""
    m, k = x.shape
    program.rows = m
    image = packed(program, tensor)
    source = Input(m, k, quantised=image.integer)
    source.values[:] = x
    if image.integer:
        program.quant(source)
    y = empty(m, tensor.shape[0])
    program.matmul(source, [image], y)
    return [image.data, *([source.codes, source.blocks] if image.integer else []), y]
