"""Estimates of a model on a device, from its cost model: what `npurt plan` asks a backend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from npurt.device.device import MatMul
from npurt.quant.tensor import QTensor

T = TypeVar("T")


class Estimate(NamedTuple, Generic[T]):
    """The lowest, the expected and the highest value of a quantity, such as seconds."""

    low: T
    expected: T
    high: T


@dataclass(frozen=True, slots=True)
class ModelWeight:
    """A matrix ``[N, K]`` of a model.

    Attributes:
        scheme: For a backend with `Rounding`, the name of the weight's scheme; else its format.
        call: Weights with the same *call* are multiplied by one x, in one call.
        head: True if only the last token of a run is multiplied by the weight.
        copies: Number of equal weights, such as layers.
        experts: Number of experts, for the weight of an expert.
        used: Number of experts that a token uses.
    """

    n: int
    k: int
    scheme: str
    call: str
    head: bool = False
    copies: int = 1
    experts: int = 1
    used: int = 1

    def rows(self, tokens: int) -> tuple[int, int]:
        """Return the rows of a product in a run of *tokens*, and the number of products.

        The tokens are assumed to use as many different experts as possible.
        """
        if self.head:
            return 1, self.copies
        active = min(self.experts, self.used * tokens)
        return -(-tokens * self.used // active), self.copies * active


@dataclass(frozen=True, slots=True)
class ModelWork:
    """The work of a token of a model.

    Attributes:
        weights: All weights of products.
        layers: Number of layers of the model.
        units: Sum over layers of the model's width and the feed-forward width.
    """

    weights: Sequence[ModelWeight]
    layers: int
    units: int


class EstimatedBoard(Protocol):
    """A board with the device, at one clock."""

    @property
    def title(self) -> str:
        """The name of the board, with driver, clock and threads, for reports."""

    @property
    def facts(self) -> dict[str, Any]:
        """The parts of the title, as JSON data."""

    def seconds(self, work: ModelWork, tokens: int) -> Estimate[float]:
        """Return the time of a run of *tokens*, including all ops."""


class Estimator(Protocol):
    """The cost model of a backend's device.

    Attributes:
        title: The device with its version, for reports.
        note: A sentence about ops other than products that the device computes, or "".
        boards: The boards whose speed the model knows.
    """

    title: str
    note: str
    boards: Sequence[EstimatedBoard]

    def why_not(self, op: MatMul) -> str | None:
        """Return None if the device can compute *op*, else the reason."""

    def weight_bytes(self, op: MatMul) -> int:
        """Return the bytes of the weight of *op* on the device, in the scheme of most weights."""


class Rounded(NamedTuple):
    """A weight on a device that rounds weights."""

    scheme: str  # the name of its scheme
    nbytes: int  # bytes on the device
    error: float | None  # expected relative mean square error of products; None: unknown


class Rounding(Protocol):
    """The rounding of weights by a device."""

    def rounded(self, matrix: QTensor, *, int16: bool) -> Rounded:
        """Return the result of rounding *matrix*.

        Raises:
            NumericsError: *matrix* holds NaN or infinity.
        """

    def usual(self, n: int, k: int, *, int16: bool) -> Rounded:
        """Return the result for a weight ``[N, K]`` of unknown values: the usual scheme."""
