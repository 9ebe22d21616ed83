"""Consecutive ops on the CPU: one program for its thread pool, verified and accounted for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from npurt.cpu import abi
from npurt.cpu.device import CpuDevice, CpuPacked
from npurt.cpu.engine import Input
from npurt.cpu.program import Program, Routing
from npurt.device import F32
from npurt.errors import VerificationFailed
from npurt.runtime.ledger import Ledger, Row
from npurt.runtime.placement import Placed
from npurt.runtime.verify import Mode, Sampler, Secret, is_right, spread_secret

ORACLE = "scalar"  # the kernels that recompute what others got wrong

WRONG_TWICE = (
    "check the hash of the model file and the memory of this machine (memtest), then run again "
    "with NPURT_VERIFY=always and report what it says"
)


@dataclass(slots=True)
class _Product:
    """One matmul op of the program."""

    op: int  # index in the program
    label: str
    weights: tuple[Placed, ...]
    packed: tuple[CpuPacked, ...]
    x: Input
    y: F32
    column: int  # of y where the first weight's results begin
    routing: Routing | None
    secrets: tuple[Secret, ...] = ()  # once it has been checked

    @property
    def names(self) -> str:
        return ", ".join(w.name for w in self.weights)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What makes products alike: formats and shapes."""
        return tuple((p.tensor.dtype, p.n, p.k) for p in self.packed)

    def row(self) -> Row:
        """Return its line of the ledger, empty."""
        first = self.weights[0]
        shape = (sum(p.n for p in self.packed), self.packed[0].k)
        return Row(self.label, self.names, shape, first.planned, "cpu", first.reason)


class HostStep:
    """A program, the products in it, and what they are called."""

    def __init__(self, cpu: CpuDevice, ledger: Ledger, sampler: Sampler) -> None:
        self.program = Program(cpu.engine)
        self._cpu = cpu
        self._notes = ledger.notes  # not the ledger, which keeps this step: see `_rows`
        self._sampler = sampler
        self._products: list[_Product] = []
        self._labels: list[tuple[Any, ...]] = []  # what a ledger row of each op begins with
        self._wrong: dict[int, int] = {}  # op -> results that did not verify
        self._caps: list[int] = []  # ops that change what the last product wrote
        ledger.follow(self._rows)

    def label(self, name: str, planned: str = "cpu", reason: str = "") -> None:
        """Name the ops added since the last call, for the ledger, and say why they are here."""
        row = (name, "", (), planned, "cpu", reason)
        self._labels += [row] * (len(self.program) - len(self._labels))

    def matmul(
        self,
        label: str,
        x: Input,
        weights: Sequence[Placed],
        y: F32,
        head: bool = False,
        routing: Routing | None = None,
        column: int = 0,
    ) -> None:
        """Add the products of *x* with weights packed for the CPU, side by side in *y*."""
        packed = tuple(w.packed for w in weights if isinstance(w.packed, CpuPacked))
        images = [p.image for p in packed]
        biases = [w.bias for w in weights]
        op = self.program.matmul(
            x, images, y, biases=biases, head=head, routing=routing, column=column
        )
        self._products.append(_Product(op, label, tuple(weights), packed, x, y, column, routing))
        self.label(label)

    def cap_logits(self, y: F32, factor: float, cap: float) -> None:
        """Add ``y = cap * tanh(factor * y / cap)`` of what the last product wrote."""
        self._caps.append(self.program.cap(y, factor=factor, cap=cap, head=True))

    def redirect_last(self, array: F32) -> None:
        """Let the last product, if it is here, and what follows it work in *array* from now on."""
        address = abi.ffi().cast("float *", array.ctypes.data)
        for op in self._caps:
            self.program.ops[op].u.cap.x = address
        if self._products:
            self._products[-1].y = array
            matmul = self.program.ops[self._products[-1].op].u.matmul
            matmul.y = address
            matmul.stride = array.shape[1]

    def run(self, rows: int, position: int, head: int) -> None:
        """Run the ops; a product that does not verify is computed again by the plainest kernels.

        Raises:
            VerificationFailed: It is wrong again.
        """
        ops, end = self.program.ops, len(self.program)
        armed = self._choose(rows)
        for product in armed:
            self._arm(product)
        start = 0
        try:
            while start < end:
                start = self.program.run(rows, position, head, start)
                if start == end:
                    break
                product = next(p for p in self._products if p.op == start)
                if _is_overflow(product, rows - head if ops[start].head else rows):
                    start += 1
                else:
                    self._replace(product)
        finally:
            for product in armed:
                ops[product.op].u.matmul.armed = 0

    def about(self) -> tuple[str, str]:
        """Return what it is and where it runs."""
        return ", ".join(dict.fromkeys([label[0] for label in self._labels])), "cpu"

    def prepare(self) -> None:
        """Make the secrets of all products now, so that no check has to."""
        for product in self._products:
            self._arm(product)
            self.program.ops[product.op].u.matmul.armed = 0

    def _choose(self, rows: int) -> list[_Product]:
        """Return the products to check in a run of *rows* rows."""
        chosen = [self._products[i] for i in self._sampler.choose(len(self._products))]
        if self._sampler.mode is Mode.SAMPLE and self._sampler.is_first((id(self), rows > 1)):
            chosen += [p for p in self._products if self._sampler.is_first((p.kind, rows > 1))]
        return chosen

    def _arm(self, product: _Product) -> None:
        matmul = self.program.ops[product.op].u.matmul
        if not product.secrets:
            pairs = zip(product.weights, product.packed, strict=True)
            product.secrets = tuple(spread_secret(w.name, packed, w.bias) for w, packed in pairs)
            for i, secret in enumerate(product.secrets):
                matmul.w[i].check_r = abi.ffi().cast("double *", secret.r.ctypes.data)
                matmul.w[i].check_s = abi.ffi().cast("double *", secret.s.ctypes.data)
                matmul.w[i].check_bound = secret.bound
                matmul.w[i].check_floor = secret.floor
        matmul.armed = 1

    def _replace(self, product: _Product) -> None:
        """Quarantine the kernel of a product: the oracle's takes over for good."""
        op = self.program.ops[product.op]
        oracle = abi.isas()[ORACLE]
        if op.isa == oracle and product.op in self._wrong:
            raise VerificationFailed(
                f"the product with {product.names} is wrong, and plain C gets it wrong too",
                remedy=WRONG_TWICE,
            )
        op.isa = oracle
        self._wrong[product.op] = self._wrong.get(product.op, 0) + 1
        self._notes.append(
            f"quarantined: cpu ({self._cpu.engine.isa_name}) computed a wrong product with "
            f"{product.names}; {ORACLE} kernels do it now"
        )

    def _rows(self) -> Iterator[Row]:
        """Yield the ledger's rows as the program's counters stand."""
        if not self.program.started:
            return
        products = {product.op: product for product in self._products}
        for index, label in enumerate(self._labels):
            op = self.program.ops[index]
            product = products.get(index)
            row = product.row() if product else Row(*label)
            row.calls, row.rows, row.verified = op.calls, op.rows, op.checks
            row.seconds = op.nanoseconds * 1e-9
            if product:
                row.macs = op.rows * row.shape[0] * row.shape[1]
                row.nbytes = op.matrices * sum(p.nbytes // p.matrices for p in product.packed)
                row.failed = self._wrong.get(index, 0)
            yield row


def _is_overflow(product: _Product, tokens: int) -> bool:
    """Say whether a product that C calls wrong is right, but for what float32 cannot hold."""
    start = product.column
    for packed, w, secret in zip(product.packed, product.weights, product.secrets, strict=True):
        columns = slice(start, start + packed.n)
        start += packed.n
        for matrix, rows in _groups(product.routing, tokens):
            own = replace(secret, s=secret.s.reshape(-1, packed.k)[matrix])
            x, y = product.x.numbers(rows), product.y[rows, columns]
            if not is_right(own, packed.matrix(matrix), x, y, bias=_of_matrix(w.bias, matrix)):
                return False
    return True


def _of_matrix(bias: F32 | None, matrix: int) -> F32 | None:
    """Return the bias of one matrix: a stack has one for each."""
    return bias if bias is None or bias.ndim == 1 else bias[matrix]


def _groups(routing: Routing | None, tokens: int) -> Iterator[tuple[int, slice]]:
    """Yield each matrix that is multiplied, and which rows by it."""
    if routing is None:
        yield 0, slice(0, tokens)
        return
    for group in routing.groups[: tokens * routing.used]:
        if group["rows"]:
            yield int(group["matrix"]), slice(group["first"], group["first"] + group["rows"])
