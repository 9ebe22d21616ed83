"""Programs with labelled ops, whose matrix products are verified during a run."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, Protocol

import numpy as np

from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import CpuThreadPool, Input
from npurt.cpu.pool.operands import Routing
from npurt.cpu.pool.packed import CpuPacked, Sums, transposed_matvecs
from npurt.cpu.pool.program import Program, batches
from npurt.cpu.pool.table import RowTable
from npurt.device.device import F32, F64, Packed
from npurt.device.segment import Counter
from npurt.device.verify import (
    ORACLE,
    WRONG_TWICE,
    Mode,
    Probe,
    Sampler,
    is_right,
    make_probe,
    probe_vector,
)
from npurt.errors import VerificationFailed

P = ParamSpec("P")


class NamedWeight(Protocol):
    """A packed weight with its name and bias."""

    @property
    def name(self) -> str:
        """The weight's name, for reports."""

    @property
    def packed(self) -> Packed:
        """The packed weight."""

    @property
    def bias(self) -> F32 | None:
        """The bias ``[N]``, of a stack ``[E, N]``; None if the weight has none."""


@dataclass(slots=True)
class CheckedProduct:
    """One matmul op of the program."""

    op: int  # index in the program's ops
    label: str
    weights: tuple[NamedWeight, ...]
    packed: tuple[CpuPacked, ...]
    x: Input
    y: F32
    column: int  # column of y where the first weight's results begin
    routing: Routing | None
    probes: tuple[Probe, ...] = ()  # one per weight; empty before the first verification

    @property
    def names(self) -> str:
        """The names of the product's weights, separated by commas."""
        return ", ".join(w.name for w in self.weights)

    @property
    def kind(self) -> tuple[Any, ...]:
        """The types and shapes of the weights: equal for products that run in the same way."""
        return tuple((p.tensor.dtype, p.n, p.k) for p in self.packed)

    def counter(self) -> Counter:
        """Return a counter of this product, at zero."""
        shape = (sum(p.n for p in self.packed), self.packed[0].k)
        return Counter(self.label, self.names, shape)


class CheckedProgram:
    """A program, its products, and the labels of its ops.

    Args:
        sampler: Chooses the products to verify.
        events: A list to which one sentence is appended for each wrong product.
    """

    def __init__(self, engine: CpuThreadPool, sampler: Sampler, events: list[str]) -> None:
        self.program = Program(engine)
        self.products: dict[int, CheckedProduct] = {}  # by index in the program's ops
        self._isa_name = engine.isa_name
        self.sampler = sampler
        self._events = events
        self._labels: list[str] = []
        self._wrong: dict[int, int] = {}  # op -> number of its results that failed verification
        self._caps: list[int] = []  # ops that cap the results of the last product in place

    def add(
        self, label: str, method: Callable[Concatenate[Program, P], int], *args: P.args,
        **options: P.kwargs
    ) -> int:  # fmt: skip
        """Add an op by *method*, a method of `Program`, and label it; return the op's index."""
        index = method(self.program, *args, **options)
        self._labels += [label] * (len(self.program) - len(self._labels))
        return index

    def matmul(
        self,
        label: str,
        x: Input,
        weights: Sequence[NamedWeight],
        y: F32,
        selects: bool = False,
        routing: Routing | None = None,
        column: int = 0,
    ) -> None:
        """Add the products of *x* with packed weights; their results are side by side in *y*."""
        packed = tuple(w.packed for w in weights if isinstance(w.packed, CpuPacked))
        op = self.add(
            label, Program.matmul, x, [p.image for p in packed], y,
            biases=[w.bias for w in weights], selects=selects, routing=routing, column=column,
        )  # fmt: skip
        self.products[op] = CheckedProduct(op, label, tuple(weights), packed, x, y, column, routing)

    def cap_logits(self, y: F32, factor: float, cap: float) -> None:
        """Add the op ``y = cap * tanh(factor * y / cap)`` on the results of the last product."""
        self._caps.append(self.add("logits", Program.cap, y, factor=factor, cap=cap, selects=True))

    def redirect_last(self, array: F32) -> None:
        """Make *array* the buffer of the last product and of the caps of its results.

        If the program has no product, only the caps change.
        """
        address = abi.ffi().cast("float *", array.ctypes.data)
        for op in self._caps:
            self.program.ops[op].u.cap.x = address
        if self.products:
            last = next(reversed(self.products))
            self.products[last].y = array
            matmul = self.program.ops[last].u.matmul
            matmul.y = address
            matmul.stride = array.shape[1]

    def run(self, table: RowTable) -> None:
        """Run the ops; recompute a product that fails verification with the scalar kernels.

        Raises:
            VerificationFailed: The recomputed product fails verification, too.
        """
        verified = self._choose(table.rows) if self.sampler.mode is not Mode.OFF else ()
        if not verified:
            self.program.run(table)
            return
        ops, end = self.program.ops, len(self.program)
        self._attach_probes(verified)
        for product in verified:
            ops[product.op].u.matmul.verify = 1
        start = 0
        try:
            while start < end:
                start = self.program.run(table, start)
                if start == end:
                    break
                product = self.products[start]
                rows = len(table.selected) if ops[start].selects else table.rows
                if _is_overflow(product, rows):
                    start += 1
                else:
                    self._replace(product)
        finally:
            for product in verified:
                ops[product.op].u.matmul.verify = 0

    def about(self) -> tuple[str, str]:
        """Return the labels of the ops, separated by commas, and the name of the device."""
        return ", ".join(dict.fromkeys(self._labels)), "cpu"

    def verify(self, sampler: Sampler) -> None:
        """Verify the products that *sampler* chooses; make all probes now, not during a run."""
        self.sampler = sampler
        if sampler.mode is Mode.OFF:
            return
        self._attach_probes(self.products.values())

    def counters(self) -> Iterator[Counter]:
        """Yield the counter of each op in order; yield nothing if the program never ran."""
        if not self.program.started:
            return
        for index, label in enumerate(self._labels):
            op = self.program.ops[index]
            product = self.products.get(index)
            counter = product.counter() if product else Counter(label)
            counter.calls, counter.rows, counter.verified = op.calls, op.rows, op.checks
            counter.seconds = op.nanoseconds * 1e-9
            if product:
                counter.macs = op.rows * counter.shape[0] * counter.shape[1]
                counter.nbytes = op.matrices * sum(p.nbytes // p.matrices for p in product.packed)
                counter.failed = self._wrong.get(index, 0)
            yield counter

    def _choose(self, rows: int) -> list[CheckedProduct]:
        """Return the products to verify in a run of *rows* rows."""
        numbers = self.sampler.choose(len(self.products))
        first = self.sampler.mode is Mode.SAMPLE and self.sampler.is_first((id(self), rows > 1))
        if not numbers and not first:
            return []
        products = list(self.products.values())
        chosen = [products[i] for i in numbers]
        if first:
            chosen += [p for p in products if self.sampler.is_first((p.kind, rows > 1))]
        return chosen

    def _attach_probes(self, products: Iterable[CheckedProduct]) -> None:
        """Make the missing probes of *products*, and set their addresses in the ops."""
        new = [product for product in products if not product.probes]
        pairs = [pair for p in new for pair in zip(p.weights, p.packed, strict=True)]
        made = iter(probes_of_images([(w.name, packed, w.bias) for w, packed in pairs]))
        for product in new:
            product.probes = tuple(itertools.islice(made, len(product.packed)))
            matmul = self.program.ops[product.op].u.matmul
            for i, probe in enumerate(product.probes):
                matmul.w[i].check_r = abi.ffi().cast("double *", probe.r.ctypes.data)
                matmul.w[i].check_s = abi.ffi().cast("double *", probe.s.ctypes.data)
                matmul.w[i].check_bound = probe.bound
                matmul.w[i].check_floor = probe.floor

    def _replace(self, product: CheckedProduct) -> None:
        """Quarantine the kernel of a product: all later runs use the scalar kernel.

        Raises:
            VerificationFailed: The product was wrong before, and is wrong with the scalar kernel.
        """
        op = self.program.ops[product.op]
        oracle = abi.isas()[ORACLE]
        if op.isa == oracle and product.op in self._wrong:
            raise VerificationFailed(
                f"the product with {product.names} is wrong, and wrong again with scalar kernels",
                remedy=WRONG_TWICE,
            )
        op.isa = oracle
        self._wrong[product.op] = self._wrong.get(product.op, 0) + 1
        self._events.append(
            f"quarantined: cpu ({self._isa_name}) computed a wrong product with "
            f"{product.names}; {ORACLE} kernels compute it from now on"
        )


def probes_of_images(weights: Sequence[tuple[str, CpuPacked, F32 | None]]) -> list[Probe]:
    """Make one probe for each (name, packed weight, bias); the sums are computed in C.

    A stack gets one probe: the concatenated `s` of its matrices, and the largest `bound` and
    `floor` of its matrices.  Errors are those of `make_probe`.
    """
    probes: list[Probe] = []
    for batch in batches([packed.nbytes for _, packed, _ in weights]):
        part = weights[batch.start : batch.stop]
        vectors = [probe_vector(packed.n) for _, packed, _ in part]
        sums = transposed_matvecs([packed for _, packed, _ in part], vectors)
        probes += map(_probe, part, vectors, sums)
    return probes


def _probe(weight: tuple[str, CpuPacked, F32 | None], r: F64, sums: Sums) -> Probe:
    name, packed, bias = weight
    biases = bias if bias is not None and bias.ndim == 2 else [bias] * packed.matrices
    each = [
        make_probe(name, r, s, float(squares), packed.group, own)
        for s, squares, own in zip(*sums, biases, strict=True)
    ]
    s = np.concatenate([one.s for one in each])
    return Probe(r, s, max(one.bound for one in each), max(one.floor for one in each))


def _is_overflow(product: CheckedProduct, tokens: int) -> bool:
    """Return whether a product failed in C only because values overflow float32.

    The product is checked again in numpy.
    """
    start = product.column
    for packed, w, probe in zip(product.packed, product.weights, product.probes, strict=True):
        columns = slice(start, start + packed.n)
        start += packed.n
        for matrix, rows in _groups(product.routing, tokens):
            own = replace(probe, s=probe.s.reshape(-1, packed.k)[matrix])
            x, y = product.x.numbers(rows), product.y[rows, columns]
            if not is_right(own, packed.matrix(matrix), x, y, bias=_of_matrix(w.bias, matrix)):
                return False
    return True


def _of_matrix(bias: F32 | None, matrix: int) -> F32 | None:
    """Return the bias ``[N]`` of one matrix; *bias* is ``[E, N]`` for a stack."""
    return bias if bias is None or bias.ndim == 1 else bias[matrix]


def _groups(routing: Routing | None, tokens: int) -> Iterator[tuple[int, slice]]:
    """Yield the index of each matrix in use, and the rows that are multiplied by it."""
    if routing is None:
        yield 0, slice(0, tokens)
        return
    for group in routing.groups[: tokens * routing.top_k]:
        if group["rows"]:
            yield int(group["matrix"]), slice(group["first"], group["first"] + group["rows"])
