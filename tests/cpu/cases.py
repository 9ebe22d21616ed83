"""Programs that every kernel set must run with equal results, and their data.

A case is a function that adds ops to a program and returns the arrays they write.  Its data depend
only on the seed.
"""

import itertools
import zlib
from dataclasses import replace

import numpy as np

from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import Input, empty
from npurt.cpu.pool.memory import allocate
from npurt.cpu.pool.operands import SILU, Heads, Image, UnitParameters
from npurt.quant.blocks import DTYPES
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME, find

INTEGER = tuple(name for name, fmt in BY_NAME.items() if fmt.block > 1)
DENSE = ("f32", "f16", "bf16")
PAGE = abi.limits().page

# Float16 scales, including those at which kernels may differ: signs, zero, subnormals, limits.
SCALES = np.array([0, 1, -1, 0.0123, -0.5, 6e-8, -6e-8, 6.1e-5, 65504, -65504, 3.3e-3], np.float16)
# Exponents with a bias of 128; the first give subnormal scales.
EXPONENTS = np.array([0, 1, 2, 100, 127, 130, 150], np.uint8)


def rng_of(*seed):
    return np.random.default_rng(zlib.crc32(repr(seed).encode()))


def weight(rng, fmt, n, k, scales=SCALES):
    """Return a tensor ``[n, k]`` of random codes whose float16 fields are drawn from *scales*.

    If *scales* is None, the fields are random bytes, which include NaN and infinity.
    """
    fmt = find(fmt)
    nbytes = n * fmt.row_bytes(k)
    tensor = QTensor.from_bytes(bytearray(rng.bytes(nbytes)), fmt, (n, k))
    for name in DTYPES[fmt.name].names or ():
        if scales is not None and name in ("d", "m", "dmin"):
            tensor.blocks[name] = rng.choice(scales, tensor.blocks.shape)
        if scales is not None and name == "e":
            tensor.blocks[name] = rng.choice(EXPONENTS, tensor.blocks.shape)
    return tensor


def fill(w, byte):
    """Set every byte of the codes of *w*."""
    for name in w.blocks.dtype.names:
        if name in ("qs", "ql", "qh", "hmask"):
            w.blocks[name] = np.uint8(byte).view(w.blocks.dtype[name].base)


def activations(rng, m, k):
    """Return float32 ``[m, k]`` whose blocks of 32 are ordinary, saturated, zero, tiny or huge."""
    x = rng.standard_normal((m, k // 32, 32), dtype=np.float32)
    kinds = rng.integers(0, 8, (m, k // 32))
    x[kinds == 1] = np.sign(x[kinds == 1]) * np.float32(2.5)  # every code is 127 or -127
    x[kinds == 2] = 0
    x[kinds == 3] *= np.float32(1e-38)  # too small for a scale
    x[kinds == 4] *= np.float32(1e-36)  # scales are subnormal
    x[kinds == 5] *= np.float32(1e6)
    return x.reshape(m, k)


def packed(program, tensor):
    """Add the op that packs *tensor*; return the packed image."""
    n, k = tensor.shape
    size = abi.lib().npurt_image_bytes(tensor.format.number, n, k)
    image = Image(allocate(size)[:size], n, k, tensor.format)
    program.pack(np.ascontiguousarray(tensor.blocks), image)
    return image


def stack(rng, fmt, experts, n, k):
    """Return a tensor ``[experts, n, k]`` of random codes, or of values if *fmt* is dense."""
    if fmt in DENSE:
        return QTensor.quantize(rng.standard_normal((experts, n, k)), fmt)
    whole = weight(rng, fmt, experts * n, k)
    return QTensor(whole.blocks.reshape(experts, n, -1), fmt)


def packed_stack(program, tensor):
    """Add the op that packs a stack of matrices; return the images, adjacent in memory."""
    experts, n, _ = tensor.shape
    whole = packed(program, QTensor(tensor.blocks.reshape(experts * n, -1), tensor.format))
    return replace(whole, n=n)


def arrays(source):
    """Return the arrays that the quantisation of *source* writes."""
    coarse = [source.codes, source.blocks] if source.quantised else []
    return coarse + ([source.remainders] if source.int16 else [])


def matmul(program, tensor, x, *, int16=False):
    """Add ops that pack, quantise and multiply; return the image, the input and the product."""
    m, k = x.shape
    program.rows = m
    image = packed(program, tensor)
    source = Input(m, k, quantised=image.integer, int16=int16)
    source.values[:] = x
    if image.integer:
        program.quant(source)
    y = empty(m, tensor.shape[0])
    program.matmul(source, [image], y)
    return [image.data, *arrays(source), y]


def quantise(program, x, *, int16=False):
    """Quantise *x* ``[m, k]``: return the codes and the fields of each block."""
    program.rows = len(x)
    out = Input(*x.shape, quantised=True, int16=int16)
    out.values[:] = x
    program.quant(out)
    return arrays(out)


def norm(program, x, gain, eps, add=None, head=0, scale=1.0):
    """Add and normalise rows from *head* on: return the updated x and the result."""
    m, k = x.shape
    program.rows, program.head = m, head
    residual = empty(m, k)
    residual[:] = x
    out = Input(m - head, k, quantised=k % 32 == 0)
    program.norm(residual, gain, eps, out, add=add, scale=scale, gathers=head > 0)
    return [residual, out.values, *arrays(out)]


def layer_norm(program, x, gain, bias, eps, add=None):
    """Add and normalise rows to mean 0: return the updated x and the result."""
    program.rows = len(x)
    residual = empty(*x.shape)
    residual[:] = x
    out = Input(*x.shape, quantised=x.shape[1] % 32 == 0)
    program.norm(residual, gain, eps, out, add=add, centred=True, bias=bias)
    return [residual, out.values, *arrays(out)]


def plain_sum(program, x, add, scale):
    """Return ``x + scale * add``, and its quantised form where the width allows."""
    program.rows = len(x)
    out = Input(*x.shape, quantised=x.shape[1] % 32 == 0)
    out.values[:] = x
    program.sum(add, out, scale=scale)
    return [out.values, *arrays(out)]


def sum_of_columns(program, x, add, scale, start):
    """Add *scale* times *add* to the columns of *x* from *start* on; return *x*."""
    program.rows = len(x)
    whole = empty(*x.shape)
    whole[:] = x
    program.sum_columns(add, whole[:, start : start + add.shape[1]], scale=scale)
    return [whole]


def cap(program, x, factor, limit, head=0):
    """Return the scaled and capped rows of *x* that a run with *head* computes."""
    program.rows, program.head = len(x), head
    y = x.copy()
    program.cap(y, factor=factor, cap=limit, selects=head > 0)
    return [y]


def unit(program, gate_up, unit=SILU):
    """Return activation(gate) * up, and its quantised form where the width allows."""
    m, columns = gate_up.shape
    program.rows = m
    k = columns if unit.activation == "GELU_ERF" else columns // 2
    out = Input(m, k, quantised=k % 32 == 0)
    program.unit(gate_up, out, unit=unit)
    return [out.values, *arrays(out)]


def shortconv(program, x, weight, stored_inputs, position=0):
    """Convolve between two gates, on a copy of the state: return the result and the new state."""
    program.rows, program.position = len(x), position
    stored_inputs = stored_inputs.copy()
    out = Input(len(x), stored_inputs.shape[1], quantised=stored_inputs.shape[1] % 32 == 0)
    program.shortconv(x, weight, stored_inputs[None], out)
    return [out.values, *arrays(out), stored_inputs]


def heads(rng, rows, position, *, n_heads, kv_heads, width, rotated, halves, dtype, gated=False,
          normed=False, whole=False, sinks=False, temperature=False, **options):  # fmt: skip
    """Return the attention of one layer with a cache that is filled up to *position* + *rows*."""
    capacity = -(-(position + rows) // PAGE) * PAGE + PAGE
    angles = rng.uniform(-np.pi, np.pi, (capacity, rotated // 2))
    keys = np.zeros((kv_heads, capacity, width), dtype)
    values = np.zeros((kv_heads, capacity, width), dtype)
    keys[:, : position + rows] = rng.standard_normal((kv_heads, position + rows, width))
    values[:, : position + rows] = rng.standard_normal((kv_heads, position + rows, width))
    columns = (n_heads * (1 + gated) + 2 * kv_heads) * width
    qkv = rng.standard_normal((rows, columns), dtype=np.float32)
    norms = rng.standard_normal((2, width), dtype=np.float32) if normed else (None, None)
    if whole:
        counts = n_heads * width, kv_heads * width
        norms = [rng.standard_normal(count, dtype=np.float32) for count in counts]
    if sinks:
        options["sinks"] = rng.standard_normal(n_heads, dtype=np.float32)
    if temperature:
        options["temperature"] = rng.uniform(1, 2, capacity).astype(np.float32)
    return Heads(
        qkv=qkv,
        cos=np.cos(angles).astype(np.float32),
        sin=np.sin(angles).astype(np.float32),
        k_cache=panels(keys),
        v_cache=paged(values),
        heads=n_heads,
        kv_heads=kv_heads,
        width=width,
        halves=halves,
        scale=width**-0.5,
        gated=gated,
        q_norm=norms[0],
        k_norm=norms[1],
        eps=1e-6,
        **options,
    )


def paged(values):
    """Return values ``[G, P, W]`` in the cache's layout: pages ``[G, N, 64, W]``, reversed."""
    g, p, w = values.shape
    return np.ascontiguousarray(values.reshape(g, p // PAGE, PAGE, w)[:, ::-1])


def unpaged(v_cache):
    """Return a copy of values ``[G, P, W]``: the inverse of `paged`."""
    g, n, size, w = v_cache.shape
    return v_cache[:, ::-1].reshape(g, n * size, w)


def panels(keys):
    """Return keys ``[G, P, W]`` in the cache's layout, ``[G, N, 4, W, 16]``."""
    pages = paged(keys)
    g, n, size, w = pages.shape
    return np.ascontiguousarray(pages.reshape(g, n, size // 16, 16, w).transpose(0, 1, 2, 4, 3))


def lines(k_cache):
    """Return a copy of keys ``[G, P, W]``: the inverse of `panels`."""
    g, n, panels, w, _ = k_cache.shape
    return unpaged(k_cache.transpose(0, 1, 2, 4, 3).reshape(g, n, panels * 16, w))


def of_layer(program, layer, position):
    """Set *program* to run the rows of *layer*, whose pages are in reverse order."""
    program.rows, program.position = len(layer.qkv), position
    program.pages = np.arange(layer.v_cache.shape[1], dtype=np.int32)[::-1].copy()


def rope(program, layer, position):
    """Rotate q and k, and append k and v to the cache; return the buffer and both caches."""
    of_layer(program, layer, position)
    program.rope(layer)
    return [layer.qkv, layer.k_cache, layer.v_cache]


def attend(program, layer, position):
    """Return the attention of every row over the cache, ``[rows, heads * width]``."""
    of_layer(program, layer, position)
    out = empty(len(layer.qkv), layer.heads * layer.width)
    program.attend(layer, out)
    return [out]


def encode(program, layer, position=0):
    """Return the attention of every row to every row, ``[rows, heads * width]``."""
    of_layer(program, layer, position)
    out = empty(len(layer.qkv), layer.heads * layer.width)
    program.encode(layer, out)
    return [out]


def transposed_matvec(program, tensor, r):
    """Return ``W^T r`` and the squares that bound its rounding."""
    k = tensor.shape[1]
    s, squares = np.zeros(k), np.zeros(-(-k // 256))
    program.transposed_matvec(packed(program, tensor), r, s, squares)
    return [s, squares]


def integers(program, a, b):
    """Return the exact product of int8 *a* ``[m, k]`` and *b* ``[k, n]``, n padded to 16."""
    (m, k), n = a.shape, b.shape[1]
    quads = -(-k // 4) * 4
    x = np.zeros((m, quads), np.int8)
    x[:, :k] = a
    image = np.zeros(-(-n // 16) * 16 * quads, np.uint8)
    y = np.zeros((m, -(-n // 16) * 16), np.int32)
    program.rows = m
    program.pack_i8(b, quads, image)
    program.multiply_i8(x, -128 * x.sum(axis=1, dtype=np.int32), image, n, y)
    return [image, y]


def _matmul(fmt, n, k, m, scales=SCALES, *, int16=False):
    def case(program):
        rng = rng_of(fmt, n, k, m)
        return matmul(program, weight(rng, fmt, n, k, scales), activations(rng, m, k), int16=int16)

    return case


def _quantise(int16):
    return lambda program: quantise(program, activations(rng_of("q"), 9, 1024), int16=int16)


def _attention(add, position, rows, **shape):
    def case(program):
        rng = rng_of(position, rows, *shape.values())
        return add(program, heads(rng, rows, position, **shape), position)

    return case


def _units(kind, k):
    return _floats(lambda program, x: unit(program, 20 * x, kind), 3, 2 * k)


def _shortconv(rows, k, kernel_size, position):
    def case(program):
        rng = rng_of(rows, k, kernel_size, position)
        x, weight, stored_inputs = (
            rng.standard_normal(shape, dtype=np.float32)
            for shape in ((rows, 3 * k), (kernel_size, k), (9, k))
        )
        return shortconv(program, x, weight, stored_inputs, position)

    return case


def _floats(add, *shape):
    def case(program):
        return add(program, (4 * rng_of(*shape).standard_normal(shape)).astype(np.float32))

    return case


def _integers(m, k, n, highest=127):
    def case(program):
        rng = rng_of(m, k, n)
        a = rng.integers(-128, highest, (m, k), np.int8, endpoint=True)
        b = rng.integers(-128, highest, (k, n), np.int8, endpoint=True)
        return integers(program, a, b)

    return case


def _saturated(fmt, m, byte):
    """Multiply activations of 127 by one repeated code, which gives the largest sums of 16 bits."""

    def case(program):
        w = weight(rng_of(fmt), fmt, 16, 256, np.array([1], np.float16))
        fill(w, byte)
        return matmul(program, w, np.full((m, 256), 127, np.float32))

    return case


def _transposed_matvec(fmt, n, k):
    def case(program):
        rng = rng_of(fmt, n, k)
        r = rng.standard_normal(n, dtype=np.float32).astype(np.float64)
        return transposed_matvec(program, weight(rng, fmt, n, k), r)

    return case


def every_case():
    """Return name -> case: every op and every kernel, on shapes at and near each limit."""
    cases = dict(_matmuls())
    grouped = {"n_heads": 6, "kv_heads": 2, "width": 64, "rotated": 64, "halves": True}
    partial = {"n_heads": 4, "kv_heads": 4, "width": 48, "rotated": 16, "halves": False}
    gated = grouped | {"rotated": 16, "gated": True, "normed": True}
    optional = partial | {
        "rotated": 0, "whole": True, "window": 70, "softcap": 2.0, "sinks": True,
        "temperature": True,
    }  # fmt: skip
    for position, rows in ((0, 1), (15, 2), (60, 9), (130, 1)):
        shapes = (grouped, partial, gated, optional)
        for dtype, shape in itertools.product((np.float16, np.float32), shapes):
            kind = f"{dtype.__name__} heads of {shape} at {position}, {rows} rows"
            cases[f"rope {kind}"] = _attention(rope, position, rows, **shape, dtype=dtype)
            cases[f"attend {kind}"] = _attention(attend, position, rows, **shape, dtype=dtype)
    for rows in (1, 16, 70):
        for shape in (grouped, partial):
            cases[f"encode heads of {shape}, {rows} rows"] = _attention(
                encode, 0, rows, **shape, dtype=np.float32
            )
    for k in (32, 40, 288):
        cases[f"norm k{k}"] = _floats(lambda p, x: norm(p, x, x[0] + 1, 1e-5, 2 * x), 3, k)
        cases[f"norm of the last k{k}"] = _floats(lambda p, x: norm(p, x, x[1], 0, None, 2), 4, k)
        cases[f"layer norm k{k}"] = _floats(
            lambda p, x: layer_norm(p, x, x[0] + 1, x[1], 1e-12, 2 * x), 3, k
        )
        cases[f"sum k{k}"] = _floats(lambda p, x: plain_sum(p, x, 3 * x[::-1], 0.22), 3, k)
        cases[f"sum of columns k{k}"] = _floats(
            lambda p, x: sum_of_columns(p, x, x[::-1, 2:].copy(), 0.22, 1), 3, k
        )
        cases[f"cap k{k}"] = _floats(lambda p, x: cap(p, x, 0.3, 3.0), 3, k)
        cases[f"scale k{k}"] = _floats(lambda p, x: cap(p, x, 0.3, 0.0), 3, k)
        for kind in (
            SILU,
            UnitParameters("GELU"),
            UnitParameters("CLAMPED", 7.0, 1.702, 1.0),
            UnitParameters("GELU_ERF"),
        ):
            cases[f"unit {kind.activation} k{k}"] = _units(kind, k)
    for m, k, n in ((1, 4, 16), (3, 31, 17), (9, 64, 33), (13, 129, 5)):
        cases[f"integers {m} {k} {n}"] = _integers(m, k, n)
    for rows, k, kernel_size, position in (
        (1, 32, 3, 0),
        (3, 48, 3, 1),
        (12, 288, 4, 7),
        (1, 544, 1, 40),
    ):
        cases[f"shortconv {rows} {k} {kernel_size} {position}"] = _shortconv(
            rows, k, kernel_size, position
        )
    cases["integers, all -128"] = _integers(5, 40, 16, highest=-128)
    return cases | {"quantise": _quantise(False), "quantise finely": _quantise(True)}


def _matmuls():
    for fmt in (*INTEGER, *DENSE):
        shapes = [
            (33, 512, 1),
            (16, 256, 2),
            (5, 256, 4),
            (48, 256, 8),
            (5, 768, 23),
            (70, 256, 50),
        ]
        if find(fmt).block <= 32:
            shapes += [(17, 32, 1), (20, 288, 3), (64, 96, 16)]
        for n, k, m in shapes:
            yield f"matmul {fmt} n{n} k{k} m{m}", _matmul(fmt, n, k, m)
        yield f"matmul {fmt} any bytes", _matmul(fmt, 24, 512, 5, None)
        yield f"transposed matvec {fmt}", _transposed_matvec(fmt, 37, 512)
    for fmt, m in itertools.product(INTEGER, (1, 2, 3, 23)):
        yield f"int16 matmul {fmt} m{m}", _matmul(fmt, 20, 256, m, int16=True)
    for fmt, m, byte in itertools.product(INTEGER, (1, 9), (0x00, 0x80, 0xFF)):
        yield f"matmul {fmt} m{m} of {byte:#04x}", _saturated(fmt, m, byte)
