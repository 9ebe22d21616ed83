"""Estimate the speed and the rounding of a model on an RK3588, for `npurt plan`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npurt.backend.estimates import Estimate, EstimatedBoard, ModelWork, Rounded
from npurt.device.device import MatMul
from npurt.quant.tensor import QTensor
from npurt.rknpu.device import quantise
from npurt.rknpu.device.estimate import run_seconds
from npurt.rknpu.isa.formats import number_format
from npurt.rknpu.plan.cost import CLOCKS
from npurt.rknpu.plan.tiling import padded

SCALE_BYTES = 4  # bytes of the scale of a row on the NPU
PATCHED_HZ = 600e6  # NPU clock with the driver rocket, in kernels with a frequency patch


@dataclass(frozen=True, slots=True)
class Rk3588:
    """A board with an RK3588, with one driver and one clock of the NPU."""

    driver: str
    clock_hz: float

    @property
    def stock(self) -> bool:
        """Whether the clock is the kernel's default."""
        return self.clock_hz == CLOCKS[self.driver]

    @property
    def title(self) -> str:
        """The driver and the clock."""
        clock = "the driver's clock" if self.stock else "with a frequency patch"
        return f"{self.driver} at {self.clock_hz / 1e6:.0f} MHz, {clock}"

    @property
    def facts(self) -> dict[str, Any]:
        """The parts of the title."""
        return {"driver": self.driver, "mhz": self.clock_hz / 1e6, "stock": self.stock}

    def seconds(self, work: ModelWork, tokens: int) -> Estimate[float]:
        """Return the time of a run of *tokens*."""
        return run_seconds(work, tokens, driver=self.driver, clock_hz=self.clock_hz)


BOARDS = (*(Rk3588(*each) for each in CLOCKS.items()), Rk3588("rocket", PATCHED_HZ))


class RknpuEstimator:
    """The cost model of the RK3588's NPU."""

    title = "rknpu"
    note = ""
    boards: Sequence[EstimatedBoard] = BOARDS

    def why_not(self, op: MatMul) -> str | None:
        """Return None: the NPU can compute every product of a model."""
        return None

    def weight_bytes(self, op: MatMul) -> int:
        """Return the bytes of the rounded weight, in the scheme of most weights."""
        return RknpuRounding().usual(op.n, op.k, int16=False).nbytes


class RknpuRounding:
    """The rounding of weights for the RK3588's NPU."""

    def rounded(self, matrix: QTensor, *, int16: bool) -> Rounded:
        """Return the scheme that `quantise.choose` chooses for *matrix*, with its error."""
        made = quantise.choose(matrix, int16=int16)
        nbytes = sum(part.codes.nbytes + part.scales.nbytes for part in made.parts)
        return Rounded(made.scheme.name, nbytes, made.error)

    def usual(self, n: int, k: int, *, int16: bool) -> Rounded:
        """Return the scheme that most weights ``[N, K]`` get."""
        scheme = quantise.default_scheme(int16=int16)
        step = number_format(scheme.task).k_step
        widths = (part.stop - part.start for part in quantise.column_groups(k, scheme.group))
        nbytes = sum(n * (padded(width, step) + SCALE_BYTES) for width in widths)
        return Rounded(scheme.name, nbytes, None)
