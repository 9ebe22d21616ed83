"""The kernels under qemu-hexagon: one process per architecture, given jobs one after another."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npurt.hexagon.layout import images
from npurt.hexagon.layout.formats import BY_NAME
from tests.hexagon.qemu import Program
from tools.build import hexagon

DRIVER = Path(__file__).with_name("kernel_driver.c")
KERNELS = sorted((hexagon.DSP / "kernels").glob("*.c"))
FILL = 0xA5  # the byte with which the driver fills outputs


@dataclass(frozen=True)
class Answer:
    """The kernels' results for a job."""

    failed: bool  # x is not finite
    quantise_packets: int
    multiply_packets: int
    activations: np.ndarray  # uint8
    y: np.ndarray  # uint8 [m, y_stride]

    def result(self, n):
        """Return the float32 [m, n] in y."""
        return np.ascontiguousarray(self.y[:, : 4 * n]).view(np.float32)


class Driver(Program):
    """A running kernel_driver.c."""

    def __init__(self, arch, folder, sources=KERNELS):
        super().__init__(arch, folder / arch, [DRIVER, *sources])

    def run(self, x, image, fmt, n, *, group=32, tiles=None, split=0, pad=0):
        """Quantise *x* and multiply it by *tiles* (first, last) of *image*.

        *split* rows are quantised by a separate call; y's rows are *pad* floats longer than n.
        """
        m, k = x.shape
        first, last = tiles or (0, -(-n // images.TILE))
        y_stride = 4 * (n + pad)
        number = BY_NAME[fmt].number
        job = struct.pack("<10I", m, k, n, group, number, 4 * k, y_stride, first, last, split)
        used = image.reshape(-1, images.tile_bytes(BY_NAME[fmt], k))[first:last]
        self.send(job + x.tobytes() + used.tobytes())
        head = struct.unpack("<4I", self.read(16))
        activations = np.frombuffer(self.read(head[3]), np.uint8)
        y = np.frombuffer(self.read(m * y_stride), np.uint8).reshape(m, y_stride)
        return Answer(bool(head[0]), head[1], head[2], activations, y)
