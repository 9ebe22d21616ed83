"""Which device does which product.

Today's rule is short: the device that was asked for, unless it says why not; then the CPU, and the
ledger has the reason.  In strict mode that is an error.
"""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from npurt.cpu.device import CpuDevice
from npurt.device import F32, Device, MatMul, Packed
from npurt.errors import DeviceFull, NotOffloaded, UnsupportedOp
from npurt.quant.tensor import QTensor


@dataclass(slots=True)
class Placed:
    """One weight where it will be used, and the plan behind it."""

    name: str
    packed: Packed
    planned: str  # name of the device the plan chose
    reason: str  # why it is not there; "" when it is
    bias: F32 | None = None  # [N]

    @property
    def device(self) -> str:
        """Name of the device that does the product."""
        return self.packed.device.caps.name

    def first(self, n: int) -> "Placed":
        """Return the first *n* rows or more: see `Packed.first`."""
        packed = self.packed.first(n)
        bias = None if self.bias is None else self.bias[: packed.n]
        return replace(self, packed=packed, bias=bias)


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


def place(
    tensors: Sequence[tuple[str, QTensor]],
    device: Device,
    cpu: CpuDevice,
    *,
    strict: bool = False,
    fine: Container[str] = (),
    done: Callable[[int], None] = lambda index: None,
) -> list[Placed]:
    """Pack each named weight ``[N, K]`` for *device*, or for *cpu* where that refuses.

    A stack ``[E, N, K]`` is packed whole for the CPU, matrix by matrix for another device.

    Args:
        fine: Names of weights whose products want activations of 16 bits.
        done: Called with the index of each weight once it is packed.

    Raises:
        NotOffloaded: *strict*, and *device* refuses a weight, or has no room for it.
    """
    reasons = []
    for name, tensor in tensors:
        n, k = tensor.shape[-2:]
        reason = device.why_not(MatMul(1, k, n, tensor.dtype))
        if reason and strict:
            raise _refused(device, name, tensor, reason)
        reasons.append(reason or "")
    stay = [i for i, reason in enumerate(reasons) if reason or device is cpu]
    packed: dict[int, Packed] = dict(
        zip(
            stay,
            cpu.pack_all([tensors[i][1] for i in stay], lambda j: done(stay[j])),
            strict=True,
        )
    )
    for i, (name, tensor) in enumerate(tensors):
        if i not in packed and tensor.ndim == 3:
            matrices = [(name, tensor[e]) for e in range(len(tensor))]
            packed[i] = Stacked(device, tensor, place(matrices, device, cpu, strict=strict))
            done(i)
        elif i not in packed:
            try:
                packed[i] = device.pack(tensor, fine=name in fine)
            except (DeviceFull, UnsupportedOp) as error:
                if strict:
                    raise _refused(device, name, tensor, error.what) from error
                packed[i], reasons[i] = cpu.pack(tensor), error.what
            done(i)
    return [
        Placed(name, packed[i], device.caps.name, reasons[i]) for i, (name, _) in enumerate(tensors)
    ]


def _refused(device: Device, name: str, tensor: QTensor, reason: str) -> NotOffloaded:
    return NotOffloaded(
        f"{device.caps.name} cannot take {name} ({tensor!r}): {reason}",
        remedy="leave strict mode to let the CPU do it, or use a file quantised otherwise",
    )
