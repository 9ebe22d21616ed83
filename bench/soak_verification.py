"""Test verification over the range of float32: right results must pass, wrong ones must fail.

    python bench/soak_verification.py --checks 1000000 [--kinds cpu arm ...] [--seed 0] [--flush]

Magnitudes of weights, activations, biases and all inputs of a delta net are log-uniform. A check
covers one row of a product, or one head of one sequence of a delta net. Each result is also damaged
in one place, by more than the error that verification guarantees to find. `--flush` makes this
machine treat subnormal numbers as zero. Exit status 0: no false alarm, and all damage found.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for tests/, which is not installed

from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import Input, empty
from npurt.cpu.pool.table import RowTable
from npurt.device import delta_check
from npurt.device.delta import DeltaError, DeltaNet, DeltaState
from npurt.device.device import FLUSHED, LAMBDA, UNIT, Packed
from npurt.device.verify import OVERFLOW, is_right, make_probe, probe_of
from npurt.errors import NumericsError, UnsupportedOp, VerificationFailed
from npurt.hexagon.device.device import HexagonDevice
from npurt.hexagon.device.weights import HexagonPacked
from npurt.hexagon.layout import delta, images, quantise
from npurt.hexagon.layout.formats import BY_NAME as HEXAGON_FORMATS
from npurt.quant.tensor import QTensor
from npurt.quant.types import BY_NAME
from npurt.runtime.open.devices import open_device
from tests.cpu.cases import INTEGER, packed, rng_of
from tests.cpu.fenv import flush_subnormals
from tests.cpu.foreign import Foreign, Recorded, compiled, emulated
from tests.hexagon import delta_model, model
from tests.hexagon.delta_kernel import packed as packed_states
from tests.runtime.fake import Products

GREATEST = float(np.finfo(np.float32).max)
FLOAT_RANGES = {"f32": (-149, 128), "bf16": (-133, 128), "f16": (-24, 16)}


@dataclass
class Tally:
    """Counts of checks and their outcomes."""

    checks: int = 0
    alarms: int = 0  # failed checks of right results
    spoilt: int = 0  # damaged results
    missed: int = 0  # damaged results that passed

    def __iadd__(self, other: "Tally") -> "Tally":
        for name in ("checks", "alarms", "spoilt", "missed"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def __str__(self) -> str:
        return (
            f"{self.checks} checks, {self.alarms} alarms, "
            f"{self.missed} missed of {self.spoilt} spoilt"
        )

    @property
    def good(self) -> bool:
        return not self.alarms and not self.missed


# --- numbers ------------------------------------------------------------------------------------


def magnitudes(rng, shape, low=-149, high=128):
    """Return log-uniform magnitudes in a random part of 2^low..2^high, float64."""
    first, last = np.sort(rng.uniform(low, high, 2))
    maximum = GREATEST if high == 128 else np.inf
    return np.minimum(np.exp2(rng.uniform(first, last, shape)), maximum)


def numbers(rng, shape, low=-149, high=128):
    """Return magnitudes() with random signs and, in some draws, zeros."""
    some = rng.random(shape) < rng.choice([0, 0, 0.3])
    return magnitudes(rng, shape, low, high) * np.where(some, 0, rng.choice([-1.0, 1.0], shape))


def floats(rng, shape):
    return numbers(rng, shape).astype(np.float32)


def rows(rng, m, k):
    """Return activations; each row has its own range of magnitudes."""
    first, last = np.sort(rng.uniform(-149, 128, (2, m, 1)), axis=0)
    sizes = np.minimum(np.exp2(first + (last - first) * rng.random((m, k))), GREATEST)
    return (sizes * rng.choice([-1, 1, 1, 0], (m, k))).astype(np.float32)


def weight(rng, fmt, n, k):
    """Return a tensor ``[n, k]`` with random finite block scales or values."""
    if fmt in FLOAT_RANGES:
        values = numbers(rng, (n, k), *FLOAT_RANGES[fmt])
        maximum = {"f16": 65504.0, "bf16": 3.38e38}.get(fmt, GREATEST)
        return QTensor.quantize(np.clip(values, -maximum, maximum), fmt)
    kind = BY_NAME[fmt]
    tensor = QTensor.from_bytes(bytearray(rng.bytes(n * kind.row_bytes(k))), kind, (n, k))
    for name in tensor.blocks.dtype.names:
        field = tensor.blocks[name]
        if name in ("d", "m", "dmin"):
            field[...] = np.clip(numbers(rng, field.shape, -24, 16), -65504, 65504)
        if name == "e":
            low, high = np.sort(rng.integers(0, 256, 2))
            field[...] = rng.integers(low, high + 1, field.shape)
    return tensor


def shape_of(rng, fmt, max_rows):
    """Return random M (rows of x), N and K of a product."""
    block = 1 if fmt in FLOAT_RANGES else BY_NAME[fmt].block
    step = max(block, 32) if block > 1 else int(rng.choice([1, 7, 32]))
    k = step * int(rng.integers(1, max(2, 1024 // step)))
    return int(rng.integers(1, max_rows + 1)), int(rng.integers(1, 97)), k


# --- products on the CPU --------------------------------------------------------------------------


def bound_of(tensor, x, bias=None):
    """Return an upper bound of the errors that verification may miss in each row, ``[M]``."""
    n, k = tensor.shape
    canonical = tensor.canonical()
    squares = float((4 * canonical.sizes() ** 2).sum())
    probe = make_probe("", np.full(n, 2.0), np.zeros(k), squares, canonical.group, bias)
    norms = np.sqrt((x.astype(np.float64) ** 2).sum(axis=1))
    return 2.01 * (probe.bound * norms * 1.02 + probe.floor)  # 2 % for the rounding of x


def cpu_product(rng, cpu) -> Tally:
    """Check a product of a kernel set with the verification in C; then with damaged images."""
    fmt = str(rng.choice(list(BY_NAME)))
    m, n, k = shape_of(rng, fmt, 512)
    tensor, x = weight(rng, fmt, n, k), rows(rng, m, k)
    int16 = fmt in INTEGER and rng.random() < 0.5
    bias = floats(rng, n) if rng.random() < 0.3 else None
    products = Products(cpu, tensor, x, int16=int16, bias=bias)
    try:
        clean = products.run()
    except VerificationFailed:
        return Tally(m, alarms=1)
    tally = Tally(m, alarms=int(products.counts()[2] > 0))
    peak = products.placed[0].packed.peak(slice(None), x.astype(np.float64)).max(axis=1)
    sound = np.isfinite(clean).all(axis=1) & (1.02 * peak < OVERFLOW)
    bounds = np.where(sound, bound_of(tensor, x, bias), np.inf)
    for _ in range(4):
        damage(rng, cpu, products, clean, bounds, tally)
    return tally


def damage(rng, cpu, products, clean, bounds, tally):
    """Flip a bit of the image; if the result changes enough, verification must fail."""
    image = products.placed[0].packed.image.data
    at, bit = rng.integers(image.size), np.uint8(1 << rng.integers(8))
    image[at] ^= bit
    spoilt = run_unchecked(cpu, products, clean.shape)
    with np.errstate(all="ignore"):
        error = abs(spoilt.astype(np.float64) - clean).max(axis=1)
    if not (error <= bounds)[np.isfinite(bounds)].all():
        tally.spoilt += 1
        failed = products.counts()[2]
        try:
            products.run()
            tally.missed += int(products.counts()[2] == failed)
        except VerificationFailed:
            pass
    image[at] ^= bit


def run_unchecked(cpu, products, shape):
    """Return the product with the image in its current state, without verification."""
    y = np.empty(shape, np.float32)
    program = Recorded(cpu.engine)
    placed = products.placed[0]
    program.matmul(products.x, [placed.packed.image], y, biases=[placed.bias])
    program.run(RowTable.of(len(y)))
    cpu.engine.settle()
    return y


def add_armed(rng, program, tensor, x, *, spoilt):
    """Add a verified product to *program*; with *spoilt*, a wrong probe makes it fail."""
    r = rng.choice([-1.5, 1.0, 1.25], tensor.shape[0])
    canonical = tensor.canonical()
    peak = Packed.peak(SimpleNamespace(tensor=tensor), slice(None), x.astype(np.float64))
    x = x[1.02 * peak.max(axis=1) < OVERFLOW]  # other rows are verified again in Python
    squares = float(((r[:, None] * canonical.sizes()) ** 2).sum())
    probe = make_probe("", r, r @ canonical.exact(), squares, canonical.group)
    image = packed(program, tensor)
    source = Input(*x.shape, quantised=image.integer)
    source.values[:] = x
    program.rows = len(x)
    if image.integer:
        program.quant(source)
    at = program.matmul(source, [image], empty(len(x), len(r)))
    w = program.ops[at].u.matmul.w[0]
    w.check_r = program._address(probe.r, "double *")
    s = probe.s.copy()
    if spoilt and len(x):
        row, column = np.unravel_index(np.argmax(abs(x)), x.shape)
        minimum = 2.1 * (probe.bound * np.linalg.norm(x[row].astype(np.float64)) + probe.floor)
        if x[row, column]:
            s[column] += minimum / abs(float(x[row, column]))
            program.ends = at
    w.check_s = program._address(s, "double *")
    w.check_bound, w.check_floor = probe.bound, probe.floor
    program.ops[at].u.matmul.verify = 1


def arm_products(rng, machine, folder, count) -> Tally:
    """Check products of the kernel sets of an emulated aarch64; an unexpected outcome raises."""
    programs, tally = [], Tally()
    indices = [index for index, works in machine.isas().values() if works]
    for i in range(count):
        fmt = str(rng.choice(list(BY_NAME)))
        m, n, k = shape_of(rng, fmt, 64)
        tensor = weight(rng, fmt, n, k)
        program = Recorded(Foreign(indices[i % len(indices)]))
        add_armed(rng, program, tensor, rows(rng, m, k), spoilt=i % 4 == 0)
        programs.append(program)
        tally += Tally(m) if program.ends is None else Tally(spoilt=1)
    machine.run_all(programs, folder)
    return tally


# --- products on other devices --------------------------------------------------------------------


def spoil(rng, y, probe, packed, x, size) -> tuple[np.ndarray, bool]:
    """Return y with one damaged element, and whether verification guarantees to find the damage."""
    i, j = int(rng.integers(y.shape[0])), int(rng.integers(y.shape[1]))
    wrong = y.astype(np.float64)
    finite = np.isfinite(y[i]).all()
    peak = packed.peak(slice(None), x[i : i + 1])
    bound = LAMBDA * size[i] * packed.error(slice(None)) + packed.floor(slice(None))
    beyond = (peak + bound >= OVERFLOW).any()
    if rng.random() < 0.2:
        wrong[i, j] = rng.choice([np.nan, np.inf, -np.inf])
        return wrong.astype(np.float32), not beyond
    minimum = 2.001 * (probe.bound * size[i] + probe.floor) / abs(probe.r[j])
    wrong[i, j] += rng.choice([-1, 1]) * minimum * np.exp2(rng.choice([0.01, 1, 10, 40]))
    with np.errstate(over="ignore"):
        spoilt = wrong.astype(np.float32)
    off = abs(float(spoilt[i, j]) - float(y[i, j]))
    return spoilt, bool(finite and np.isfinite(off) and off > minimum)


def check_product(rng, packed, x, y, size) -> Tally:
    """Check y, the product of x; then check damaged copies of y."""
    probe = probe_of("", packed)
    norms = np.sqrt((x**2).sum(axis=1)) if size is None else size
    tally = Tally(len(x), alarms=int(not is_right(probe, packed, x, y, magnitudes=size)))
    for _ in range(8):
        wrong, promised = spoil(rng, y, probe, packed, x, norms)
        if promised:
            tally.spoilt += 1
            tally.missed += int(is_right(probe, packed, x, wrong, magnitudes=size))
    return tally


def hexagon_model(rng) -> Tally:
    """Check a product of the integer model of the Hexagon's kernels."""
    fmt = str(rng.choice([name for name in HEXAGON_FORMATS if name != "i8"]))
    m, n, k = shape_of(rng, fmt if BY_NAME[fmt].block > 1 else "q8_0", 128)
    packed = HexagonPacked(None, weight(rng, fmt, n, k), 0, fmt)
    try:
        packed.part = SimpleNamespace(array=images.pack(packed.tensor))
    except UnsupportedOp:
        return Tally()
    x = rows(rng, m, k)
    held = images.unpack(packed.part.array, packed.format, n, k)
    y = model.product(quantise.quantise(x), held, fmt)
    device = HexagonDevice.__new__(HexagonDevice)  # multiplied() and magnitudes() need no session
    return check_product(rng, packed, device.multiplied(x, packed), y, device.magnitudes(x, packed))


def on_device(rng, device) -> Tally:
    """Check a product of a device."""
    fmt = str(rng.choice(list(BY_NAME)))
    m, n, k = shape_of(rng, fmt if BY_NAME[fmt].block > 1 else "q8_0", 128)
    x, y = rows(rng, m, k), np.empty((m, n), np.float32)
    try:
        packed = device.pack(weight(rng, fmt, n, k), int16=(False, True, None)[rng.integers(3)])
        device.matmul(x, packed, y)
        multiplied = device.multiplied(x, packed)
    except (UnsupportedOp, NumericsError):  # scales too far apart, or rows too large to rotate
        return Tally()
    return check_product(rng, packed, multiplied, y, device.magnitudes(x, packed))


# --- delta nets -----------------------------------------------------------------------------------


def net_of(rng, *, sequences=64, width=None):
    """Return a delta net with random finite inputs; decays are not positive."""
    tokens, heads = int(rng.choice([1, 1, 1, 3, 8])), int(rng.integers(1, 4))
    width = width or int(rng.choice([16, 16, 16, 32, 80]))
    k_heads = heads if rng.random() < 0.5 else 1
    gates = width if rng.random() < 0.4 else 1

    def some(*shape):
        if rng.random() < 0.3:  # ordinary magnitudes, mixed with extreme ones
            return rng.standard_normal(shape).astype(np.float32) / np.float32(4)
        return floats(rng, shape)

    return DeltaNet(
        q=some(sequences, tokens, k_heads, width),
        k=some(sequences, tokens, k_heads, width),
        v=some(sequences, tokens, heads, width),
        decay=-abs(some(sequences, tokens, heads, gates)),
        beta=some(sequences, tokens, heads),
        out=np.zeros((sequences, tokens, heads, width), np.float32),
        state=some(sequences, heads, width, width),
        scale=float(abs(some(1))[0]),
        grouped=bool(rng.random() < 0.5),
    )


def check_net(rng, net, before, after, error) -> Tally:
    """Check every head of a net after its run; then heads with a wrong result or state."""
    tally = Tally()
    for head in range(net.v.shape[2]):
        one = slice(head, head + 1)
        tally.checks += len(net.v)
        right = delta_check.is_right(net, head, before[:, one], after[:, one], error)
        tally.alarms += int(not right)
    for _ in range(8):
        head = int(rng.integers(net.v.shape[2]))
        spoil_net(
            rng, net, head, before[:, head : head + 1], after[:, head : head + 1], error, tally
        )
    return tally


def spoil_net(rng, net, head, before, after, error, tally):
    """Check with an element of the results or of the state wrong by more than its bound."""
    exact, state, out_bound, state_bound = delta_check.recompute(net, head, before, error)
    out, last = net.out.copy(), after.copy()
    if rng.random() < 0.5:
        at = tuple(int(rng.integers(size)) for size in exact.shape)
        promised = off_by(rng, out, (*at[:2], head, at[2]), exact[at], out_bound[at])
    else:
        at = tuple(int(rng.integers(size)) for size in state.shape)
        promised = off_by(rng, last, (at[0], 0, *at[1:]), state[at], state_bound[at[:2]])
    if promised:
        tally.spoilt += 1
        wrong = replace(net, out=out)
        tally.missed += int(delta_check.is_right(wrong, head, before, last, error))


def off_by(rng, array, at, exact, bound) -> bool:
    """Store a number that is wrong by more than *bound*; return whether its float32 is."""
    if not np.isfinite(bound):
        return False
    wrong = exact + rng.choice([-1, 1]) * 1.01 * bound * np.exp2(rng.choice([0, 1, 10]))
    with np.errstate(over="ignore"):
        array[at] = np.float32(wrong)
    return bool(abs(float(array[at]) - exact) > bound)


def delta_of_model(rng) -> Tally:
    """Check a net's results from the integer model of the Hexagon's kernel."""
    net = net_of(rng, sequences=2, width=16)
    words = packed_states(net)
    shape = delta.shape_of(net)
    before = np.empty_like(net.state)
    delta.unpack_state(words, shape, before)
    with np.errstate(over="ignore"):
        out, states = delta_model.run(net, words)
    units = [np.exp2(np.minimum(s.exponents, delta.MAX_EXPONENT) + 0.0) for s in states]
    values = [
        s.integers * (s.gain[:, None] / 2**31) * u for s, u in zip(states, units, strict=True)
    ]
    net = replace(net, out=np.ascontiguousarray(delta.results(out, shape)))
    with np.errstate(over="ignore"):
        after = np.stack([v[:16, :16].T for v in values]).astype(np.float32)
    error = DeltaError(delta.ERROR, delta.ABSOLUTE_ERROR)
    return check_net(rng, net, before, after.reshape(net.state.shape), error)


def delta_on(rng, device, error) -> Tally:
    """Check a device's results for a net."""
    net = net_of(rng)
    state: DeltaState = device.delta_state(net)
    before = state.read().copy()
    with np.errstate(over="ignore"):
        state.advance(net)
        return check_net(rng, net, before, state.read(), error)


# --- all kinds of checks
# ----------------------------------------------------------------------------------

CPU_DELTA = DeltaError(16 * UNIT, FLUSHED)


class Kinds:
    """The kinds of checks, a method each; devices are opened at their first use."""

    def __init__(self, seed: int) -> None:
        self._rng = rng_of("soak", seed)
        self._opened: dict[str, object] = {}
        self._temporary = tempfile.TemporaryDirectory()
        self._folder = Path(self._temporary.name)

    def close(self) -> None:
        for device in self._opened.values():
            device.close()
        self._temporary.cleanup()

    def _device(self, name):
        if name not in self._opened:
            kind, _, isa = name.partition(" ")
            self._opened[name] = CpuDevice(1, isa) if isa else open_device(kind)
        return self._opened[name]

    def cpu(self):
        isas = list(abi.isas())
        return cpu_product(self._rng, self._device(f"cpu {self._rng.choice(isas)}"))

    def hexagon(self):
        return hexagon_model(self._rng)

    def hexagon_sim(self):
        return on_device(self._rng, self._device("hexagon:sim"))

    def rknpu_sim(self):
        return on_device(self._rng, self._device("rknpu:sim"))

    def delta_cpu(self):
        return delta_on(self._rng, self._device("cpu"), CPU_DELTA)

    def delta_hexagon(self):
        return delta_of_model(self._rng)

    def delta_hexagon_sim(self):
        device = self._device("hexagon:sim")
        return delta_on(self._rng, device, device.delta_error)

    def arm(self):
        driver = self._folder / "driver-aarch64"
        if not driver.exists():
            compiled("aarch64", self._folder)
        cpu = str(self._rng.choice(["max", "cortex-a76", "cortex-a53"]))
        return arm_products(self._rng, emulated(driver, cpu), self._folder, 100)


KINDS = [name for name in vars(Kinds) if not name.startswith("_") and name != "close"]


def soak(kind: str, checks: int, seed: int = 0) -> Tally:
    """Run one kind until *checks* right results are checked."""
    kinds, tally = Kinds(seed), Tally()
    try:
        while tally.checks < checks:
            tally += getattr(kinds, kind)()
    finally:
        kinds.close()
    return tally


def main() -> int:
    """Run each kind and print its counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checks", type=int, default=1_000_000, help="of each kind")
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--flush", action="store_true", help="treat subnormal numbers as zero")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.flush:
        flush_subnormals()
    good = True
    for kind in args.kinds:
        start = time.perf_counter()
        tally = soak(kind, args.checks, args.seed)
        seconds = time.perf_counter() - start
        if args.json:
            print(json.dumps({"kind": kind, **vars(tally), "seconds": seconds}), flush=True)
        else:
            print(f"{kind}: {tally}, {seconds:.0f} s", flush=True)
        good &= tally.good
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
