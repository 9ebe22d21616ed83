"""Quantised weights on the NPU: divided among the cores, laid out, uploaded once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32, F64, FLUSHED, UNIT, Device, Packed
from npurt.quant.tensor import QTensor
from npurt.rknpu.device.arena import Arena
from npurt.rknpu.device.quantise import (
    PLAIN,
    REMAINDER_STEPS,
    QuantisedWeight,
    RoundedColumns,
    Scheme,
    outlier_rows,
    quantise_weight,
    to_float16,
)
from npurt.rknpu.driver.memory import Buffer, Space
from npurt.rknpu.driver.native.host import I8, round_rows
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.plan.images import weights_image
from npurt.rknpu.plan.proof import Role
from npurt.rknpu.plan.tiling import Interval, WeightPlan, plan_weights


@dataclass(frozen=True, slots=True)
class PartOfInput:
    """The columns of x that one part of a weight multiplies, and the parameters of their rounding.

    Attributes:
        columns: The columns.
        kp: The number of columns after padding.
        block: Columns of a rotation, 1 for none.
        signs: Signs of the rotation, int8 ``[kp]``, or None.
    """

    columns: slice
    kp: int
    block: int
    signs: I8 | None

    def outlier_rows(self, x: F32, x_error: float) -> npt.NDArray[np.bool_]:
        """Return a mask of the rows of x ``[M, K]`` that have outliers in these columns.

        See `quantise.outlier_rows`.
        """
        selected = x[:, self.columns]
        return outlier_rows(selected, x_error, kp=self.kp, signs=self.signs, block=self.block)

    def quantise(self, x: F32, scheme: Scheme) -> F64:
        """Return these columns of x ``[M, K]`` after rotation and rounding, ``[M, kp]``."""
        selected = x[:, self.columns]
        if scheme.task != "int8":
            halves = np.zeros((len(x), self.kp))
            halves[:, : selected.shape[1]] = to_float16(selected)
            return halves
        codes = np.empty((scheme.passes * len(x), self.kp), np.int8)
        scales = np.empty(len(x), np.float32)
        round_rows(
            selected, codes, scales, signs=self.signs, block=self.block, passes=scheme.passes
        )
        values = codes[: len(x)].astype(np.float64)
        if scheme.passes == 2:
            values += codes[len(x) :] / REMAINDER_STEPS
        exact: F64 = values * scales[:, None]
        return exact


def inputs_of(quantised: QuantisedWeight) -> tuple[PartOfInput, ...]:
    """Return the parameters for rounding x, for each part of K."""
    return tuple(
        PartOfInput(part.columns, part.codes.shape[1], part.block, part.signs)
        for part in quantised.parts
    )


class PartOnNpu:
    """One part of K of a weight, with an image of each core's rows in the core's address space."""

    def __init__(self, part: RoundedColumns, task: str, spaces: Sequence[Space], name: str) -> None:
        n, kp = part.codes.shape
        self.columns = part.columns
        self.block = part.block
        self.signs = part.signs
        self.scales = part.scales
        self.kp = kp
        self.plan: WeightPlan = plan_weights(number_format(task), n, kp, cores=len(spaces))
        self.images: list[Buffer] = []
        try:
            for core in range(len(self.plan.cores)):
                image = weights_image(part.codes, self.plan, core)
                buffer = spaces[core].alloc(image.nbytes, Role.INPUT, f"{name}, core {core}")
                self.images.append(buffer)
                with buffer.cpu_access(write=True) as memory:
                    memory[: image.nbytes] = image
        except BaseException:
            self.free()
            raise

    def free(self) -> None:
        """Free the images."""
        for image in self.images:
            image.free()


class RoundedPacked(Packed):
    """A weight that was quantised by a scheme; the host rounds x for it.

    Attributes:
        scheme: The scheme.
        inputs: The parameters for rounding x, for each part of K.
    """

    scheme: Scheme
    inputs: tuple[PartOfInput, ...]

    def quantise_input(self, x: F32) -> F64:
        """Return x ``[M, K]`` after rotation and rounding, the parts side by side."""
        return np.concatenate([part.quantise(x, self.scheme) for part in self.inputs], axis=1)

    def error(self, rows: slice) -> F64:
        """Return the standard error; see `Packed.error`.

        The result of each part is rounded to float32, and so is each sum of parts.  Sums of int8
        products are exact; the NPU rounds each sum of float16 products to float32 [?].  The errors
        are independent, and each is at most `UNIT` times the product of the norms of x and w.
        """
        norms: F64 = np.linalg.norm(self.multiplied(rows), axis=1)
        roundings = 2 * len(self.inputs) + (0 if self.scheme.task == "int8" else self.k)
        return UNIT * math.sqrt(roundings) * norms

    def floor(self, rows: slice) -> F64:
        """Return the error of results whose parts and sums of parts may be flushed to zero."""
        return np.full(len(range(self.n)[rows]), 3 * len(self.inputs) * FLUSHED)

    def peak(self, rows: slice, x: F64) -> F64:
        """Return an upper bound of the float32 values: the results of parts, and their sums."""
        maximum: F64 = abs(x) @ abs(self.multiplied(rows)).T
        return maximum


class RkPacked(RoundedPacked):
    """A weight that was quantised within its error budget; `upload` puts it on the NPU.

    The NPU's memory can be lost at any time, and other threads must not access it then.  So only
    products, which have the device's lock, use `parts`.  Verification and the choice of rows use
    only data of the host: the tensor or the codes, and `inputs`.

    Attributes:
        parts: The parts of K in the NPU's memory; empty if the weight has no memory.
        slices: For each part of K, the slices whose sums the NPU rounds separately.
    """

    def __init__(
        self, device: Device, tensor: QTensor, quantised: QuantisedWeight, number: int
    ) -> None:
        self.device = device
        self.tensor = tensor
        self.number = number  # unique in the process of the device
        self.scheme = quantised.scheme
        self.expected_error = quantised.error
        self.parts: list[PartOnNpu] = []
        self.inputs = inputs_of(quantised)
        self.slices: list[tuple[Interval, ...]] = []
        self.arena: Arena | None = None  # the arena of the last upload
        self._nbytes = sum(part.codes.nbytes for part in quantised.parts)
        self._quantised: QuantisedWeight | None = quantised
        self._again = quantised.scheme is not PLAIN  # whether the tensor can be quantised again

    def upload(self, arena: Arena) -> None:
        """Upload the weight to *arena*, for the first time or after its memory was lost.

        Raises:
            DeviceFull: The weight does not fit the arena.
        """
        quantised = self.quantised()
        try:
            for part in quantised.parts:
                name = f"weight {self.number}"
                self.parts.append(PartOnNpu(part, self.scheme.task, arena.spaces, name))
        except BaseException:
            self.free()
            raise
        self.arena = arena
        self.slices = [part.plan.slices for part in self.parts]
        self._quantised = None if self._again else quantised  # saves host memory
        self._nbytes = sum(image.nbytes for part in self.parts for image in part.images)

    def quantised(self) -> QuantisedWeight:
        """Return the codes and scales of the weight, without access to the NPU's memory."""
        return self._quantised or quantise_weight(self.tensor, self.scheme)

    def free(self) -> None:
        """Free the weight's memory on the NPU."""
        for part in self.parts:
            part.free()
        self.parts.clear()

    @property
    def has_memory(self) -> bool:
        """Whether the NPU's memory has the weight; may change unless the caller has the lock."""
        return bool(self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the images, over all cores."""
        return self._nbytes

    def multiplied(self, rows: slice) -> F64:
        """Return *rows* of the rounded values in the rotated basis, the parts side by side."""
        known = self._quantised
        if known:
            rounded = [(part.codes[rows], part.scales[rows]) for part in known.parts]
        else:  # rows are rounded independently
            parts = quantise_weight(self.tensor[rows], self.scheme).parts
            rounded = [(part.codes, part.scales) for part in parts]
        values = [codes.astype(np.float64) * scales[:, None] for codes, scales in rounded]
        return np.concatenate(values, axis=1)
