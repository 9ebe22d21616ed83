"""Run programs of these tests on the simulator, one job each, with arrays in and out."""

import numpy as np

from tests.sim_rknpu import client
from tests.sim_rknpu.alone import Lut, activation
from tests.sim_rknpu.client import Rocket, entry
from tests.sim_rknpu.programs import BYTES, DTYPES, pack_cube, unpack_cube

SENTINEL = 0xEE


def run(driver, program, enable, out):
    """Submit one program as a job, and wait."""
    whole = np.append(program, np.zeros(len(program) % 2, np.uint64)).tobytes()
    if isinstance(driver, Rocket):
        code = driver.buffer(whole)
        driver.run([(code.iova, len(program))], [code], [out])
        return
    code = driver.buffer(whole, client.LISTS)
    entries = driver.create(40, client.TASKS)
    mask = 0xC00 if enable == 0x60 else 0x300
    raw = entry(code.iova, len(program), enable, int_mask=mask)
    entries.bytes[:] = np.frombuffer(raw, np.uint8)
    driver.submit(entries, 1)
    out.prep()


def allocate(driver, nbytes):
    out = driver.create(nbytes)
    out.bytes[:] = SENTINEL
    out.fini()
    return out


def cube(driver, x):
    """Return a buffer with the cube *x* of float16."""
    return driver.buffer(pack_cube(x, np.float16).tobytes())


def convolve_cube(driver, conv, features, w):
    """Run a convolution of a cube in a buffer; return the buffer of the result."""
    weights = driver.buffer(conv.pack_weights(w).tobytes())
    height, width = conv.out_shape
    out = allocate(driver, conv.n * height * width * BYTES[conv.types[1]])
    run(driver, conv.words(features.iova, weights.iova, out.iova), 0x1D, out)
    return out


def convolve(driver, conv, x, w):
    """Run a convolution of *x* and *w*; return the channels without padding."""
    kinds = [DTYPES[kind] for kind in conv.types]
    features = driver.buffer(pack_cube(x, kinds[0]).tobytes())
    out = convolve_cube(driver, conv, features, w)
    channels = conv.ic if conv.depthwise else conv.oc
    return unpack_cube(out.bytes, kinds[1], channels, *conv.out_shape)


def integers(rng, shape, dtype, low=-128, high=128):
    return rng.integers(low, high, shape).astype(dtype)


def weights_of(rng, conv, dtype, low=-128, high=128):
    shape = (conv.ic,) if conv.depthwise else (conv.oc, conv.ic)
    return integers(rng, (*shape, *conv.kernel), dtype, low, high)


def pool_cube(driver, pool, source):
    """Run a pooling of a cube of float16 in a buffer; return the buffer of the result."""
    height, width = pool.out_shape
    out = allocate(driver, -(-pool.channels // 8) * 16 * height * width)
    run(driver, pool.words(source.iova, out.iova), 0x60, out)
    return out


def q15(values, minimum=0):
    """Return values of 0 to 1 as entries, as rocket-userspace rounds them."""
    return np.clip(np.floor(np.abs(values) * 32768 + 0.5), minimum, 32767).astype(np.uint16)


def unit_lut(f):
    """Return the LUT of *f* on [0, 1], like rocket-userspace's build_lut_unit."""
    at = np.arange(513) * 32 / 2596
    return Lut(q15(f(at - 512 * 32 / 2596)), q15(f(at)), 2596, -0.0, 1, 15, 23107, 22)


def shifted_lut(f, low, high, out_low=0.0, exponent=0):
    """Return the LUT of *f* on [low, high] in the positive half, like build_lut_shifted."""
    span, scale = 2.0**exponent, 16384 / (high - low)
    entries = q15((f(low + np.arange(513) * (high - low) / 512) - out_low) / span, 1)
    offset = int(np.floor(out_low * 32768 / span + 0.5))
    return Lut(np.full(513, entries[0]), entries, scale, -low * scale, offset, 15 - exponent)


def look_up_cube(driver, lut, source):
    """Run the LUT for all float16 of a buffer, of whole columns; return the buffer of results."""
    columns = len(source.bytes) // 16
    out = allocate(driver, 16 * columns)
    run(driver, activation(lut, columns, source.iova, out.iova), 0x18, out)
    return out


def look_up(driver, lut, x):
    """Return the LUT's results for float16 *x*, on the simulator."""
    raw = np.zeros(-(-len(x) // 8) * 8, np.float16)
    raw[: len(x)] = x
    out = look_up_cube(driver, lut, driver.buffer(raw.tobytes()))
    return out.bytes.view(np.float16)[: len(x)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))
