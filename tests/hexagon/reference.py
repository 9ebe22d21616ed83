"""dsp/reference on the host: the interface of the kernels, called from Python."""

import cffi
import numpy as np

from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import BY_NAME
from tests.hexagon.kernels import FILL, Answer
from tools import build
from tools.build.hexagon import DSP

CDEF = """
typedef struct npurt_format npurt_format;
const npurt_format *npurt_find_format(uint32_t number);
uint32_t npurt_format_arch(const npurt_format *format);
size_t npurt_tile_bytes(const npurt_format *format, uint32_t k);
int npurt_takes_group(const npurt_format *format, uint32_t group);
size_t npurt_activation_bytes(uint32_t m, uint32_t k);
typedef struct {
    const float *x; size_t x_stride; uint32_t m, k, group; void *activations;
} npurt_quantisation;
int npurt_quantise(const npurt_quantisation *q, uint32_t first, uint32_t last, void *scratch);
typedef struct {
    const npurt_format *format; const void *activations; float *y; size_t y_stride;
    uint32_t m, k, n;
} npurt_product;
void npurt_multiply(const npurt_product *p, const void *tiles, uint32_t first, uint32_t last);
"""


class Reference:
    """The library, compiled into *folder*; `run` is that of `tests.hexagon.kernels.Driver`."""

    def __init__(self, folder):
        self.ffi = cffi.FFI()
        self.ffi.cdef(CDEF)
        sources = [DSP.parent / "tests/hexagon/reference.c"]
        made = build.build_library(
            build.host(),
            folder / "libreference.so",
            sources=sources,
            includes=[DSP, DSP.parent / "idl"],
        )
        self.lib = self.ffi.dlopen(str(made))

    def run(self, x, image, fmt, n, *, group=32, tiles=None, split=0, pad=0):
        """Quantise *x* and multiply it by *tiles* (first, last) of *image*."""
        m, k = x.shape
        first, last = tiles or (0, -(-n // images.TILE))
        x = np.ascontiguousarray(x)
        activations = np.full(self.lib.npurt_activation_bytes(m, k), FILL, np.uint8)
        q = self._struct("npurt_quantisation", m=m, k=k, group=group, x_stride=4 * k)
        q.x, q.activations = self._at("float *", x), self._at("void *", activations)
        failed = self.lib.npurt_quantise(q, 0, split, self.ffi.NULL)
        failed |= self.lib.npurt_quantise(q, split, m, self.ffi.NULL)
        y = np.full((m, 4 * (n + pad)), FILL, np.uint8)
        p = self._struct("npurt_product", m=m, k=k, n=n, y_stride=y.shape[1])
        p.format = self.lib.npurt_find_format(BY_NAME[fmt].number)
        p.activations, p.y = q.activations, self._at("float *", y)
        used = image.reshape(-1, images.tile_bytes(BY_NAME[fmt], k))[first:last]
        if not failed:
            self.lib.npurt_multiply(p, self._at("void *", used), first, last)
        return Answer(bool(failed), 0, 0, activations, y)

    def _struct(self, name, **fields):
        return self.ffi.new(f"{name} *", fields)

    def _at(self, kind, array):
        return self.ffi.cast(kind, array.ctypes.data)
