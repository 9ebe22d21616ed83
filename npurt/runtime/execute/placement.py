"""Place weights: choose the device of each product.

The device that the user chose gets all weights that it supports.  The CPU gets the other weights,
and the ledger records the reason.  If the device has too little memory, it gets whole units, such
as layers, in the order of the time that they save for each byte.  If it runs out of memory later,
the unit that saves the least time moves to the CPU.  In strict mode each of these fallbacks is an
error.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from npurt.cpu.device import CpuDevice
from npurt.device.device import F32, Device, Estimates, MatMul, Packed, Use
from npurt.device.host_products import moved_to_host
from npurt.errors import DeviceFull, NotOffloaded, UnsupportedOp
from npurt.quant.tensor import QTensor

# The assumed work when weights compete for memory: tokens of a prompt and of a completion.
PROMPT, REPLY = 512, 128


@dataclass(frozen=True, slots=True)
class Wanted:
    """A weight ``[N, K]``, or a stack of them ``[E, N, K]``, to be placed.

    Attributes:
        name: The tensor's name in the file.
        tensor: The values.
        int16: The products need activations of 16 bits.
        unit: Weights of the same unit are placed together; by default *name*.
        call: Weights of the same call are multiplied by one input; by default *name*.
        rows: The largest number of rows of one product.
        prompt: Rows of a product for each token of a prompt; 0 means one row for a whole prompt.
        reply: Products for each generated token.
    """

    name: str
    tensor: QTensor
    int16: bool = False
    unit: str = ""
    call: str = ""
    rows: int = 1
    prompt: float = 1.0
    reply: float = 1.0

    def op(self, rows: int) -> MatMul:
        """Return the product of *rows* rows with the weight, or with one matrix of the stack."""
        n, k = self.tensor.shape[-2:]
        return MatMul(rows, k, n, self.tensor.dtype)

    @property
    def matrices(self) -> int:
        """The number of matrices: E for a stack, else 1."""
        return len(self.tensor) if self.tensor.ndim == 3 else 1

    def worth(self, device: Device) -> tuple[float, int]:
        """Return the seconds that *device* is expected to save, and its bytes for the weight."""
        if not isinstance(device, Estimates):
            return 0.0, self.tensor.nbytes
        prompt = device.saving(self.op(max(1, round(PROMPT * self.prompt))), int16=self.int16)
        reply = device.saving(self.op(1), int16=self.int16)
        if prompt is None or reply is None:
            return 0.0, self.tensor.nbytes
        seconds = prompt.seconds + REPLY * self.reply * reply.seconds
        return self.matrices * seconds, self.matrices * prompt.nbytes


@dataclass(slots=True, weakref_slot=True)
class Placed:
    """One weight in the memory of its device, and the planned device."""

    name: str
    packed: Packed
    planned: str  # name of the device that the plan chose
    reason: str  # why the weight is not on the planned device; "" if it is
    bias: F32 | None = None  # [N], or [E, N] for a stack
    residents: "Residents | None" = None  # the list that this weight is in

    @property
    def device(self) -> str:
        """Name of the device that runs the product."""
        return self.packed.device.caps.name

    def add_bias(self, bias: F32) -> None:
        """Add *bias* ``[N]``, or ``[E, N]`` for a stack, to results from now on."""
        self.bias = bias
        if isinstance(self.packed, Stacked):
            for matrix, row in zip(self.packed.each, bias, strict=True):
                matrix.bias = row

    def first(self, n: int) -> "Placed":
        """Return the first *n* rows or more: see `Packed.first`."""
        packed = self.packed.first(n)
        if packed is self.packed:
            return self  # not a copy, so that both move to the CPU together
        return replace(self, packed=packed, bias=None if self.bias is None else self.bias[:n])


class Stacked(Packed):
    """A stack ``[E, N, K]`` on a device that multiplies by one matrix at a time."""

    def __init__(self, device: Device, tensor: QTensor, each: Sequence[Placed]) -> None:
        self.device = device
        self.tensor = tensor
        self.each = tuple(each)

    @property
    def nbytes(self) -> int:
        """Bytes of all matrices."""
        return sum(w.packed.nbytes for w in self.each)


@dataclass(slots=True)
class Unit:
    """Weights that are placed together: their indices, time saved and bytes."""

    members: list[int] = field(default_factory=list)
    seconds: float = 0.0
    nbytes: int = 0

    @property
    def worth(self) -> float:
        """Seconds that the unit is expected to save for each byte."""
        return self.seconds / self.nbytes if self.nbytes else 0.0


class Residents:
    """The units of weights on a device, in descending order of the time that they save.

    This object has weak references to the weights, so the memory of a dropped model is freed at
    once.
    """

    def __init__(self, device: Device, cpu: CpuDevice) -> None:
        self._device, self._cpu = device, cpu
        self._units: list[list[weakref.ref[Placed]]] = []

    def add(self, weights: Sequence[Placed]) -> None:
        """Add a unit, which saves at most as much time as the units before."""
        self._units.append([weakref.ref(w) for w in weights])
        for w in weights:
            w.residents = self

    def evict(self) -> bool:
        """Move the unit that saves the least time to the CPU; return False if no unit is left."""
        while self._units:
            moved = False
            for w in filter(None, (there() for there in self._units.pop())):
                if w.packed.device is self._device:
                    w.packed = moved_to_host(w.packed, self._cpu, self._cpu.engine.threads)
                    w.reason = f"{self._device.caps.name} ran out of memory"
                    moved = True
            if moved:
                return True
        return False


def place(
    wanted: Sequence[Wanted],
    device: Device,
    cpu: CpuDevice,
    *,
    strict: bool = False,
    done: Callable[[int], None] = lambda index: None,
    note: Callable[[str], None] = lambda sentence: None,
) -> list[Placed]:
    """Pack each weight for *device*, or for *cpu* if *device* refuses it or has too little memory.

    A stack is packed as a whole for the CPU, and matrix by matrix for another device.

    Args:
        done: Called with the index of each packed weight.
        note: Called with a sentence for the report, at most once.

    Raises:
        NotOffloaded: *strict* is set, and *device* refuses a weight or has too little memory.
    """
    placer = _Placer(wanted, device, cpu, strict, done)
    placer.ask()
    placer.fill()
    sentence = placer.shortage()
    if sentence:
        note(sentence)
    placer.rest()
    return [placer.placed[i] for i in range(len(wanted))]


class _Placer:
    """The steps of `place`."""

    def __init__(
        self,
        wanted: Sequence[Wanted],
        device: Device,
        cpu: CpuDevice,
        strict: bool,
        done: Callable[[int], None],
    ) -> None:
        self._wanted, self._device, self._cpu = wanted, device, cpu
        self._strict, self._done = strict, done
        self._reasons: dict[int, str] = {}  # index of a refused weight -> reason
        self._full: DeviceFull | None = None  # the last failure for lack of memory
        self._residents = Residents(device, cpu)
        self.placed: dict[int, Placed] = {}

    def ask(self) -> None:
        """Find the weights that the device refuses, before any is packed."""
        for i, each in enumerate(self._wanted):
            reason = self._device.why_not(each.op(1))
            if reason:
                self._refuse(each, reason)
                self._reasons[i] = reason

    def _refuse(self, each: Wanted, reason: str) -> None:
        if self._strict:
            name = self._device.caps.name
            raise NotOffloaded(
                f"{name} cannot take {each.name} ({each.tensor!r}): {reason}",
                remedy="turn strict mode off to use the CPU, or use a file in another format",
            )

    def fill(self) -> None:
        """Pack units for the device until it is full; units that save the most time come first."""
        units = self._units()
        if not units or not self._reserve():
            return
        smallest = None  # bytes of the smallest unit that did not fit
        for unit in units:
            if smallest is not None and unit.nbytes >= smallest:
                continue
            if not self._pack(unit):
                smallest = unit.nbytes

    def _units(self) -> list[Unit]:
        """Return the units of the accepted weights, in descending order of time saved per byte."""
        if self._device is self._cpu:
            return []
        units: dict[str, Unit] = {}
        for i, each in enumerate(self._wanted):
            if i not in self._reasons:
                unit = units.setdefault(each.unit or each.name, Unit())
                seconds, nbytes = each.worth(self._device)
                unit.members.append(i)
                unit.seconds += seconds
                unit.nbytes += nbytes
        return sorted(units.values(), key=lambda unit: -unit.worth)

    def _reserve(self) -> bool:
        uses = [
            Use(each.op(each.rows), each.int16, each.call or each.name)
            for i, each in enumerate(self._wanted)
            if i not in self._reasons
        ]
        try:
            self._device.reserve(uses)
        except DeviceFull as error:
            self._note_full(self._wanted[0], error)
            return False
        return True

    def _note_full(self, each: Wanted, error: DeviceFull) -> None:
        self._refuse(each, error.what)
        self._full = copy(error)  # drops the traceback, whose frames keep weights alive

    def _pack(self, unit: Unit) -> bool:
        """Pack a whole unit for the device, or nothing."""
        placed: dict[int, Placed] = {}
        leaves: list[Placed] = []
        for i in unit.members:
            try:
                placed[i] = self._one(self._wanted[i], leaves)
            except DeviceFull as error:
                self._note_full(self._wanted[i], error)
                return False
        self._residents.add(leaves)
        self.placed |= placed
        for i in unit.members:
            self._done(i)
        return True

    def _one(self, each: Wanted, leaves: list[Placed]) -> Placed:
        if each.tensor.ndim == 2:
            leaves.append(self._matrix(each, each.tensor))
            return leaves[-1]
        matrices = [self._matrix(each, each.tensor[e]) for e in range(each.matrices)]
        leaves += matrices
        stack = Stacked(self._device, each.tensor, matrices)
        return Placed(each.name, stack, self._device.caps.name, "")

    def _matrix(self, each: Wanted, tensor: QTensor) -> Placed:
        name = self._device.caps.name
        try:
            return Placed(each.name, self._device.pack(tensor, int16=each.int16), name, "")
        except UnsupportedOp as error:
            self._refuse(each, error.what)
            return Placed(each.name, self._cpu.pack(tensor), name, error.what)

    def shortage(self) -> str:
        """Return a sentence if the device had too little memory for all weights, else ""."""
        if not self._full:
            return ""
        sizes = [each.tensor.nbytes for each in self._wanted]
        there = sum(sizes[i] for i in self.placed)
        names = [self._wanted[i].name for i in self._left()]
        others = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        return (
            f"{self._device.caps.name} has space for {len(self.placed)} of {len(sizes)} weights "
            f"({there / 1e6:.1f} of {sum(sizes) / 1e6:.1f} MB of the file); the CPU has the "
            f"others, {others}. To place more on {self._device.caps.name}: {self._full.remedy}"
        )

    def _left(self) -> Iterator[int]:
        """Yield the indices of accepted weights that did not fit."""
        return (
            i for i in range(len(self._wanted)) if i not in self.placed and i not in self._reasons
        )

    def rest(self) -> None:
        """Pack the remaining weights for the CPU.

        For weights that did not fit, the CPU becomes the planned device.
        """
        stay = [i for i in range(len(self._wanted)) if i not in self.placed]
        tensors = [self._wanted[i].tensor for i in stay]
        packed = self._cpu.pack_all(tensors, lambda j: self._done(stay[j]))
        for i, each in zip(stay, packed, strict=True):
            reason = self._reasons.get(i, "")
            planned = self._device if reason else self._cpu
            self.placed[i] = Placed(self._wanted[i].name, each, planned.caps.name, reason)
            if self._full and not reason:
                self.placed[i].reason = f"{self._device.caps.name} has no space for it"
