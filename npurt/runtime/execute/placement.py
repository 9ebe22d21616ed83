"""Placement: decide which device does which product.

The device that the user asked for gets all weights that it accepts.  The CPU gets the others, and
the ledger records the reason.  When the device has no room for all, it gets whole units, such as
layers: first those that are expected to save most time for each byte.  When its memory runs out
later, the unit that saves least moves to the CPU.  In strict mode all of these are errors.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from npurt.cpu.device import CpuDevice
from npurt.device import F32, Device, Estimates, MatMul, Packed, Use
from npurt.errors import DeviceFull, NotOffloaded, UnsupportedOp
from npurt.quant.tensor import QTensor

# What a device is used for, when weights compete for its memory: a prompt, then an answer.
PROMPT, REPLY = 512, 128  # tokens


@dataclass(frozen=True, slots=True)
class Wanted:
    """A weight ``[N, K]``, or a stack of them ``[E, N, K]``, to be placed.

    Attributes:
        name: Its name in the file.
        tensor: Its values.
        int16: Its products need activations of 16 bits.
        unit: Weights of the same unit are placed together; by default its name.
        call: Weights of the same call are multiplied by one input; by default its name.
        rows: The most rows of one product.
        prompt: Rows of a product for each token of a prompt; 0: one row for the whole prompt.
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
        """Return the product of *rows* rows, by one matrix of a stack."""
        n, k = self.tensor.shape[-2:]
        return MatMul(rows, k, n, self.tensor.dtype)

    @property
    def matrices(self) -> int:
        """The number of matrices."""
        return len(self.tensor) if self.tensor.ndim == 3 else 1

    def worth(self, device: Device) -> tuple[float, int]:
        """Return the seconds that *device* is expected to save, and the bytes that it takes."""
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
    planned: str  # name of the device the plan chose
    reason: str  # why it is not there; "" when it is
    bias: F32 | None = None  # [N], of a stack [E, N]
    residents: "Residents | None" = None  # it is one of them

    @property
    def device(self) -> str:
        """Name of the device that does the product."""
        return self.packed.device.caps.name

    def add_bias(self, bias: F32) -> None:
        """Add *bias* ``[N]``, of a stack ``[E, N]``, to results from now on."""
        self.bias = bias
        if isinstance(self.packed, Stacked):
            for matrix, row in zip(self.packed.each, bias, strict=True):
                matrix.bias = row

    def first(self, n: int) -> "Placed":
        """Return the first *n* rows or more: see `Packed.first`."""
        packed = self.packed.first(n)
        if packed is self.packed:
            return self  # so that both move when one does
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
    """Weights that are placed together: their indices, and the time that they save."""

    members: list[int] = field(default_factory=list)
    seconds: float = 0.0
    nbytes: int = 0

    @property
    def worth(self) -> float:
        """Seconds that the unit is expected to save for each byte."""
        return self.seconds / self.nbytes if self.nbytes else 0.0


class Residents:
    """The weights on a device, unit by unit, those that save most time first.

    Weights refer to this object, which refers to them weakly: the memory of a dropped model is
    free at once.
    """

    def __init__(self, device: Device, cpu: CpuDevice) -> None:
        self._device, self._cpu = device, cpu
        self._units: list[list[weakref.ref[Placed]]] = []

    def add(self, weights: Sequence[Placed]) -> None:
        """Add a unit, which saves no more than those before."""
        self._units.append([weakref.ref(w) for w in weights])
        for w in weights:
            w.residents = self

    def evict(self) -> bool:
        """Move the unit that saves least to the CPU; return False if there is none."""
        while self._units:
            moved = False
            for w in filter(None, (there() for there in self._units.pop())):
                if w.packed.device is self._device:
                    w.packed = self._cpu.pack(w.packed.tensor)
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
    """Pack each weight for *device*, or for *cpu* if the device refuses it or has no room.

    A stack is packed whole for the CPU, matrix by matrix for another device.

    Args:
        done: A function that gets the index of each packed weight.
        note: A function that gets a sentence for the report, at most once.

    Raises:
        NotOffloaded: *strict*, and *device* refuses a weight, or has no room for it.
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
        self._reasons: dict[int, str] = {}  # of what the device refuses
        self._full: DeviceFull | None = None  # why the device had no room
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
                remedy="leave strict mode to let the CPU do it, or use a file quantised otherwise",
            )

    def fill(self) -> None:
        """Pack units for the device until it is full, those that save most first."""
        units = self._units()
        if not units or not self._reserve():
            return
        smallest = None  # that had no room
        for unit in units:
            if smallest is not None and unit.nbytes >= smallest:
                continue
            if not self._pack(unit):
                smallest = unit.nbytes

    def _units(self) -> list[Unit]:
        """Return the units of the accepted weights, those that save most first."""
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
        self._full = copy(error)  # without its traceback, which keeps weights alive

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
        """Return a sentence if the device had no room for all weights, else ""."""
        if not self._full:
            return ""
        sizes = [each.tensor.nbytes for each in self._wanted]
        there = sum(sizes[i] for i in self.placed)
        names = [self._wanted[i].name for i in self._left()]
        others = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        return (
            f"{self._device.caps.name} has room for {len(self.placed)} of {len(sizes)} weights "
            f"({there / 1e6:.1f} of {sum(sizes) / 1e6:.1f} MB of the file); the CPU has the "
            f"others, {others}. To have more there: {self._full.remedy}"
        )

    def _left(self) -> Iterator[int]:
        """Yield the weights that had no room."""
        return (
            i for i in range(len(self._wanted)) if i not in self.placed and i not in self._reasons
        )

    def rest(self) -> None:
        """Pack the remaining weights for the CPU; those that had no room are planned there."""
        stay = [i for i in range(len(self._wanted)) if i not in self.placed]
        tensors = [self._wanted[i].tensor for i in stay]
        packed = self._cpu.pack_all(tensors, lambda j: self._done(stay[j]))
        for i, each in zip(stay, packed, strict=True):
            reason = self._reasons.get(i, "")
            planned = self._device if reason else self._cpu
            self.placed[i] = Placed(self._wanted[i].name, each, planned.caps.name, reason)
            if self._full and not reason:
                self.placed[i].reason = f"{self._device.caps.name} has no room for it"
