"""A toy NPU: a device of another package that runs whole layers.

    pip install -e examples/toy_npu
    npurt run -m model.gguf -dev toy -p Hello
    npurt run -m model.gguf -dev toy:dies=30 -p Hello      # it dies in its 30th run
    npurt run -m model.gguf -dev toy:dies=30,often=3 -p Hello   # it is lost for good
    npurt run -m model.gguf -dev toy:memory=50M -p Hello   # layers that do not fit run on the CPU

The toy NPU multiplies in int8, with a scale for each row of the weight and of the activations, and
has its own memory.  It refuses the op `WeightedSum`, which npurt then runs on the CPU.  It computes
all other ops (norms, RoPE, attention with its KV cache) with the functions in
`npurt.graph.meaning`; a real NPU would use its own kernels.
"""

import errno
import functools

import numpy as np

from npurt.device.device import Caps, Device, Packed, check_product
from npurt.device.segment import Fit
from npurt.errors import DeviceFull, DeviceLost, NpurtError, SettingError
from npurt.graph import ops
from npurt.reference.segment import ReferenceSegment

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def rounded(x):
    """Return int8 codes of x, and a scale for each row."""
    scales = np.maximum(abs(x).max(axis=-1, keepdims=True), 1e-30) / 127
    return np.rint(x / scales).astype(np.int8), scales.astype(np.float32)


def multiply(x, codes, scales):
    """Return the product of x and a weight in int8, with integer sums."""
    x, x_scales = rounded(x)
    sums = x.astype(np.int32) @ codes.T.astype(np.int32)
    return (sums * x_scales * scales.T).astype(np.float32)


class ToyPacked(Packed):
    """A weight as int8 with a scale for each row."""

    def __init__(self, device, tensor):
        self.device, self.tensor = device, tensor
        self.codes, self.scales = rounded(tensor.dequantize())

    @property
    def nbytes(self):
        return self.codes.nbytes + self.scales.nbytes

    def multiplied(self, rows):
        return self.codes[rows] * self.scales[rows].astype(np.float64)

    def error(self, rows):
        """Return the error bound: two float32 roundings of the exact sum, half an ulp each."""
        return 2.0**-22 * np.sqrt((self.multiplied(rows) ** 2).sum(axis=1))


def matmul(packed, op, run):
    """Compute the op `npurt.graph.ops.MatMul`."""
    w = packed[op.name]
    y = multiply(run[op.x], w.codes, w.scales)
    return (y if op.bias is None else y + run[op.bias],)


class HostSegment(ReferenceSegment):
    """A segment in the toy NPU's arithmetic, on the host."""

    def __init__(self, device, part, weights, limits):
        self.packed = {
            op.name: ToyPacked(device, weights.quantised(op.weight.name))
            for op in part.ops
            if isinstance(op, ops.MatMul)
        }
        kernel = functools.partial(matmul, self.packed)  # a method would keep this segment alive
        super().__init__(part, weights, limits, {ops.MatMul: kernel})

    def packed_weight(self, op):
        return self.packed[op.name]


class ToySegment(HostSegment):
    """A segment on the toy NPU, with its weights in the NPU's memory."""

    def __init__(self, device, part, weights, limits):
        self.device, self.nbytes = device, device.fit(part, weights, limits).nbytes
        device.allocate(self.nbytes, part.name)
        super().__init__(device, part, weights, limits)

    def run(self, values, rows):
        self.device.work()
        return super().run(values, rows)

    def close(self):
        super().close()
        self.device.used -= self.nbytes
        self.nbytes = 0


class ToyDevice(Device):
    """The opened toy NPU.

    Args:
        name: The device's name in reports.
        memory: Size of the NPU's memory in bytes.
        dies: The run in which the NPU dies for the first time; 0: never.
        often: How often it dies, in successive runs.
    """

    def __init__(self, name="toy", memory=1 << 32, dies=0, often=1):
        self.caps = Caps(name, f"toy NPU, int8, {memory >> 20} MiB", simulated=True)
        self.memory, self.used, self.runs = memory, 0, 0
        self.deaths = range(dies, dies + often) if dies else ()
        self.closed = False

    def require_open(self):
        if self.closed:
            raise NpurtError(f"{self.caps.name} is closed", remedy="open it again")

    def allocate(self, nbytes, what):
        if self.used + nbytes > self.memory:
            raise DeviceFull(
                f"no space for {nbytes} bytes of {what} beside {self.used} of {self.memory}",
                remedy="give it more with toy:memory=4G",
                call="alloc",
                code=errno.ENOMEM,
            )
        self.used += nbytes

    def work(self):
        self.runs += 1
        if self.runs in self.deaths:
            raise DeviceLost(
                f"{self.caps.name} died in run {self.runs}",
                remedy="open it again",
                call="run",
                code=errno.EIO,
            )

    def why_not(self, op):
        return None

    def pack(self, tensor, *, int16=False):
        self.require_open()
        return ToyPacked(self, tensor)

    def matmul(self, x, w, out):
        self.require_open()
        check_product(self, x, [w], [out])
        out[:] = multiply(x, w.codes, w.scales)

    def multiplied(self, x, w):
        codes, scales = rounded(x)
        return codes * scales.astype(np.float64)

    def why_not_op(self, op, limits):
        if isinstance(op, ops.WeightedSum):
            return "the array of multipliers cannot gate"
        return None

    def compile(self, part, weights, limits):
        self.require_open()
        return ToySegment(self, part, weights, limits)

    def fit(self, part, weights, limits):
        """Return the bytes of the weights: int8 codes, and a float32 scale for each row."""
        products = [op.weight.shape for op in part.ops if isinstance(op, ops.MatMul)]
        return Fit(sum(n.size * (k.size + 4) for n, k in products))

    def reopen(self):
        """Open the NPU again after a loss; npurt has closed its segments."""
        self.require_open()

    def compile_on_host(self, part, weights, limits):
        """Return a segment for a lost NPU: the host computes the same bits."""
        return HostSegment(self, part, weights, limits)

    def close(self):
        self.used, self.closed = 0, True


def open_device(name):
    """Open the device of a string such as ``toy:memory=50M,dies=3``."""
    settings = {"memory": 1 << 32, "dies": 0, "often": 1}
    for word in filter(None, name.partition(":")[2].split(",")):
        key, _, value = word.partition("=")
        unit = UNITS.get(value[-1:], 1)
        digits = value[:-1] if unit > 1 else value
        if key not in settings or not digits.isdecimal():
            raise SettingError(
                f"{name!r} has a setting {word!r}", remedy="use memory=SIZE, dies=N and often=N"
            )
        settings[key] = int(digits) * unit
    return ToyDevice(name, **settings)
