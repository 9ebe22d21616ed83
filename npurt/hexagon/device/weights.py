"""Weights in the memory of a session, and the rules for weights that kernels support."""

import weakref

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, Device, MatMul
from npurt.device.host_products import HostDevice
from npurt.hexagon.device.batch import Batch, PlacedWeight
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.fastrpc.rpcmem import LARGEST, U8, BlockAllocator, Slice
from npurt.hexagon.host.products import HexagonHostPacked
from npurt.hexagon.layout import formats, images, quantise
from npurt.hexagon.layout.packed import IntegerPacked
from npurt.hexagon.session import messages
from npurt.quant.tensor import QTensor

I8 = npt.NDArray[np.int8]
Parts = list[tuple[Batch, slice]]  # batches, and the slice of the weights that each multiplies


def why_not(op: MatMul, arch: int) -> str | None:
    """Return None if a Hexagon v*arch* can compute *op*, else the first rule that *op* breaks."""
    fmt = formats.BY_NAME.get(op.format)
    if fmt is None:
        return f"there is no kernel for {op.format}"
    if fmt.arch > arch:
        return f"{op.format} needs a Hexagon v{fmt.arch}, and this is a v{arch}"
    if not op.n or not op.k:
        return "the weight has no elements"
    if op.k % quantise.BLOCK or op.k > messages.MAX_K:
        return f"K must be a multiple of {quantise.BLOCK} and at most {messages.MAX_K}"
    if op.n > messages.MAX_N:
        return f"N is more than {messages.MAX_N}"
    if images.image_bytes(fmt, op.n, op.k) > LARGEST:
        return f"its image takes more than {LARGEST} bytes, the size of the largest shared block"
    return None


class HexagonPacked(IntegerPacked):
    """A weight in shared memory, in the layout of the DSP's kernels.

    Attributes:
        number: A unique number.
        group: Columns of activations that share a scale; 0: the whole row.
        batches: The prepared batches whose first weight is this one, by the numbers of all their
            weights.
    """

    group = quantise.BLOCK

    def __init__(self, device: Device, tensor: QTensor, number: int, kind: str) -> None:
        self.device = device
        self.tensor = tensor
        self.format = formats.BY_NAME[kind]
        self.number = number
        self.batches: dict[tuple[int, ...], Parts] = {}
        self._finalizer: weakref.finalize[..., HexagonPacked] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the image."""
        return images.image_bytes(self.format, self.n, self.k)

    def put(self, memory: SessionMemory, allocator: BlockAllocator, part: Slice) -> None:
        """Write the image to *part*; *allocator* gets *part* back when this object is deleted.

        Other threads may read the previous image until the new image is complete.
        """
        if self._finalizer:
            self._finalizer.detach()  # the previous part belongs to a session that has ended
        self._finalizer = weakref.finalize(self, allocator.free, part)
        self._write(part.array)
        memory.wrote(part)
        self.memory, self.part, self.batches = memory, part, {}

    def _write(self, image: U8) -> None:
        images.pack(self.tensor, image)

    @property
    def weight(self) -> PlacedWeight:
        """The description of this weight for a batch."""
        return PlacedWeight(self.part, self.n, self.k, self.format.number)

    def on_host(self, device: HostDevice) -> HexagonHostPacked:
        """Return this weight for the host, from a new image: the session's memory may be lost."""
        image = np.empty(self.nbytes, np.uint8)
        self._write(image)
        return HexagonHostPacked(device, self.tensor, self.format, self.group, image)

    def integers(self, rows: slice) -> images.UnpackedIntegers:
        """Return the integers of *rows* in the image."""
        return images.unpack(self.part.array, self.format, self.n, self.k, rows)


class HexagonInt8(HexagonPacked):
    """A weight of int8 codes with one scale per row, for activations with one scale per row."""

    group = 0

    def __init__(self, device: Device, codes: I8, scales: F32, number: int) -> None:
        values = codes * scales[:, None].astype(np.float32)
        super().__init__(device, QTensor(values, "f32"), number, "i8")
        self._codes, self._scales = codes, scales

    def _write(self, image: U8) -> None:
        images.pack_i8(self._codes, self._scales, image)
