"""Tests of the limits of kernels: npurt_run refuses sizes beyond them, and sizes at them work."""

import re

import numpy as np
import pytest

from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.cpu.pool.engine import CpuThreadPool, Input, empty
from npurt.cpu.pool.operands import GROUP, Routing
from npurt.cpu.pool.program import Program
from npurt.cpu.pool.table import RowTable, TableSpan
from npurt.errors import UnsupportedOp
from npurt.quant.tensor import QTensor
from tests.cpu import cases, delta_cases
from tests.cpu.foreign import Recorded, same

LIMITS = abi.limits()
CASES = cases.every_case() | delta_cases.every_case()


@pytest.fixture(scope="module")
def engine():
    opened = CpuThreadPool(2)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def names():
    """Return kind of op -> name of the first case that has such an op."""
    found = {}
    for name, case in CASES.items():
        program = Recorded(CpuThreadPool(1))
        case(program)
        for i in range(len(program)):
            found.setdefault(program.ops[i].kind, name)
    return found


def field_of(op, path):
    """Return the struct with the field *path* of *op*, such as ``matmul.w[0].n``, and its name."""
    *before, last = re.findall(r"\w+", path)
    struct = op.u
    for part in before:
        struct = struct[int(part)] if part.isdigit() else getattr(struct, part)
    return struct, last


# Kind, field, a value that the kernels do not support, and the error message.
REFUSED = [
    ("NORM", "norm.out.k", 0, "columns of an input: 0, must be 1 to 16777216"),
    ("NORM", "norm.out.k", LIMITS.columns + 1, "columns of an input: 16777217"),
    ("QUANT", "quant.out.k", 33, "not whole blocks"),
    ("QUANT", "quant.out.codes", None, "codes"),
    ("UNIT", "unit.out.k", -32, "columns of an input: -32"),
    ("MATMUL", "matmul.weights", 4, "weights of a product: 4, must be 1 to 3"),
    ("MATMUL", "matmul.weights", 0, "weights of a product: 0"),
    ("MATMUL", "matmul.w[0].n", 0, "rows of a weight: 0"),
    ("MATMUL", "matmul.w[0].n", 1 << 40, "rows of a weight"),
    ("MATMUL", "matmul.w[0].k", 64, "a weight and its input differ in columns"),
    ("MATMUL", "matmul.w[0].type", 99, "type of a weight is unknown"),
    ("MATMUL", "matmul.w[0].column", 1, "first column of a result: 1, must be 0 to 0"),
    ("MATMUL", "matmul.w[0].column", -1, "first column of a result: -1"),
    ("MATMUL", "matmul.in.codes", None, "remainders without codes|no codes"),
    ("MATMUL", "matmul.matrices", LIMITS.experts + 1, "matrices: 4097"),
    ("ROPE", "attention.width", LIMITS.head + 16, "width of a head: 272, must be 1 to 256"),
    ("ROPE", "attention.width", 40, "whole vectors"),
    ("ROPE", "attention.rotated", 65, "rotated elements of a head: 65, must be 0 to 64"),
    ("ROPE", "attention.rotated", 63, "whole pairs"),
    ("ATTEND", "attention.width", LIMITS.head + 16, "width of a head: 272"),
    ("ATTEND", "attention.heads", 7, "evenly"),
    ("ATTEND", "attention.heads", 1 << 20, "columns of q, k and v"),
    ("ATTEND", "attention.kv_heads", 0, "key heads: 0"),
    ("ATTEND", "attention.stride", 1, "columns of q, k and v"),
    ("ATTEND", "attention.cache_bytes", 3, "unknown type of a cache"),
    ("ATTEND", "attention.positions", 0, "positions of a cache: 1, must be 0 to 0"),
    ("ROPE", "attention.pages", 1, "pages of a cache: 2, must be 0 to 1"),
    ("ATTEND", "attention.pages", 0, "pages of a cache: 2, must be 0 to 0"),
    ("ATTEND", "attention.pages", -1, "pages of a cache: -1"),
    ("NORM", "norm.gathers", 1, "gathers rows, but its op selects none"),
    ("ENCODE", "attention.width", 40, "whole vectors"),
    ("ENCODE", "attention.positions", 0, "positions of a table: 1, must be 0 to 0"),
    ("ENCODE", "attention.gated", 1, "heads of an encoder have no gates"),
    ("UNIT", "unit.activation", 4, "activation: 4, must be 0 to 3"),
    ("SUM", "sum.out.k", 0, "columns of an input: 0"),
    ("SUM", "sum.stride", 1, "columns of a sum in place: 32, must be 1 to 1"),
    ("SUM", "sum.stride", 33, "a sum with codes needs whole rows"),
    ("CAP", "cap.k", 0, "columns of capped values: 0"),
    ("ATTEND", "attention.window", -1, "positions of a window: -1"),
    ("ROPE", "attention.whole", 1, "norms over all heads need weights"),
    (
        "SHORTCONV",
        "shortconv.kernel_size",
        LIMITS.kernel_size + 1,
        "kernel size of a convolution: 9, must be 1 to 8",
    ),
    ("SHORTCONV", "shortconv.capacity", 0, "stored tokens of a convolution: 0"),
    (
        "SHORTCONV",
        "shortconv.out.k",
        LIMITS.columns // 2,
        "columns of a gated convolution: 25165824",
    ),
    ("CONV", "conv.width", LIMITS.delta + 16, "width of a head: 144, must be 1 to 128"),
    (
        "CONV",
        "conv.kernel_size",
        LIMITS.kernel_size + 1,
        "kernel size of a convolution: 9, must be 1 to 8",
    ),
    ("CONV", "conv.kernel_size", 0, "kernel size of a convolution: 0"),
    ("CONV", "conv.capacity", 1, "stored tokens of a convolution: 1"),
    ("CONV", "conv.heads", 1 << 20, "channels"),
    ("CONV", "conv.slots", 0, "slots of sequences: 1, must be 0 to 0"),
    ("SHORTCONV", "shortconv.slots", 0, "slots of sequences: 1, must be 0 to 0"),
    ("DELTA", "delta.slots", 0, "slots of sequences: 1, must be 0 to 0"),
    ("DELTA", "delta.slots", -1, "slots of sequences: -1"),
    ("DELTA", "delta.width", LIMITS.delta + 16, "width of a head: 144"),
    ("DELTA", "delta.k_heads", 0, "key heads: 0"),
    ("DELTA", "delta.heads", 1 << 24, "values of a token"),
    ("DELTA", "delta.gates", 2, "decays of a head"),
    ("DELTA", "delta.sequences", 0, "sequences: 0"),
    ("GATE", "gate.width", 24, "whole vectors"),
    ("GATE", "gate.width", 1 << 10, "whole heads"),
    ("ROUTE", "route.experts", LIMITS.experts + 1, "experts: 4097, must be 1 to 4096"),
    ("ROUTE", "route.top_k", 0, "experts of a row: 0"),
    ("ROUTE", "route.top_k", 1 << 10, "experts of a row: 1024"),
    ("ROUTE", "route.stride", 1, "columns of scores: 1"),
    ("GATHER", "gather.out.k", 32, "copies and their input differ"),
    ("GATHER", "gather.in.codes", None, "remainders without codes|no codes to copy"),
    ("WEIGHTED_SUM", "weighted_sum.k", 0, "columns of a sum: 0"),
    ("WEIGHTED_SUM", "weighted_sum.top_k", 0, "experts of a row: 0"),
    ("TRANSPOSED_MATVEC", "transposed.w.type", 99, "type of a weight is unknown"),
    ("TRANSPOSED_MATVEC", "transposed.w.k", 0, "columns of a weight: 0"),
    ("PACK_I8", "integers.k", 6, "a multiple of 4"),
    (
        "I8",
        "integers.k",
        LIMITS.exact + 4,
        "columns of an exact product: 131076, must be 1 to 131072",
    ),
    ("I8", "integers.n", 0, "results of an exact product: 0"),
]


@pytest.mark.parametrize(("kind", "path", "value", "match"), REFUSED)
def test_an_op_that_the_kernels_cannot_take_is_refused_before_anything_runs(
    engine, names, kind, path, value, match
):
    number = getattr(abi.lib(), f"NPURT_{kind}")
    program = Recorded(engine)
    CASES[names[number]](program)
    index = next(i for i in range(len(program)) if program.ops[i].kind == number)
    struct, name = field_of(program.ops[index], path)
    setattr(struct, name, abi.ffi().NULL if value is None else value)
    before = [array.copy() for array in program.arrays]

    with pytest.raises(UnsupportedOp, match=match) as caught:
        program.run()

    assert f"op {index}, " in str(caught.value)
    assert caught.value.remedy
    for array, was in zip(program.arrays, before, strict=True):
        same(array, was)
    assert [program.ops[i].calls for i in range(len(program))] == [0] * len(program)


@pytest.mark.parametrize("kind", ["NORM", "MATMUL", "ATTEND", "DELTA", "ROUTE"])
@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("kind", 99, "unknown op"),
        ("kind", 0, "unknown op"),
        ("isa", 99, "instruction set: 99"),
        ("isa", -1, "instruction set: -1"),
        ("row_multiplier", 5000, "copies of a row: 5000"),
    ],
)
def test_an_op_of_no_kind_or_instruction_set_is_refused(engine, names, kind, field, value, match):
    number = getattr(abi.lib(), f"NPURT_{kind}")
    program = Recorded(engine)
    CASES[names[number]](program)
    setattr(program.ops[0], field, value)

    with pytest.raises(UnsupportedOp, match=match):
        program.run()


def quant_of(engine, rows):
    """Return a program that quantises, and its input of *rows* rows."""
    program, x = Program(engine), Input(rows, 32, quantised=True)
    x.values[:] = 1
    program.quant(x)
    return program, x


@pytest.mark.parametrize(
    ("rows", "position", "selected", "match"),
    [
        (LIMITS.rows + 1, 0, [], "rows of a run: 513, must be 0 to 512"),
        (2, 0, [0, 1, 2], "selected rows: 3, must be 0 to 2"),
        (2, 0, [-1], "selected row: -1, must be 0 to 1"),
        (2, 0, [0, 2], "selected row: 2, must be 1 to 1"),
        (2, 0, [1, 0], "selected row: 0, must be 2 to 1"),
        (2, 0, [0, 0], "selected row: 0, must be 1 to 1"),
        (2, -1, [], "position: -1"),
        (2, (1 << 31) + 5, [], "position: 2147483653"),
    ],
)
def test_a_run_of_a_size_that_cannot_be_is_refused(engine, rows, position, selected, match):
    program, _ = quant_of(engine, LIMITS.rows + 1)

    with pytest.raises(UnsupportedOp, match=match):
        program.run(RowTable([TableSpan(rows, position)], np.array(selected, np.int32)))


def test_an_op_is_looked_at_again_for_more_rows_and_each_time_for_positions(engine):
    x = np.ones((LIMITS.rows, 32), np.float32)
    w = QTensor.quantize(np.ones((4, 32)), "q8_0")
    program = Recorded(engine)
    cases.matmul(program, w, x)
    assert program.run(RowTable.of(LIMITS.rows)) == len(program)
    assert [program.ops[i].checked for i in range(len(program))] == [LIMITS.rows + 1] * len(program)
    program.ops[len(program) - 1].row_multiplier = 2

    # Sizes that were checked before are not checked again.
    assert program.run(RowTable.of(1)) == len(program)
    with pytest.raises(UnsupportedOp, match="rows of a run"):
        program.run(RowTable.of(LIMITS.rows + 1))

    rng = cases.rng_of("positions")
    layer = cases.heads(
        rng, 2, 30, n_heads=2, kv_heads=1, width=32, rotated=32, halves=True, dtype=np.float16
    )
    attends = Recorded(engine)
    cases.rope(attends, layer, 30)
    last = len(layer.cos)
    more = np.arange(layer.v_cache.shape[1] + 1, dtype=np.int32)
    assert attends.run(RowTable.of(2, last - 2, attends.pages)) == len(attends)
    with pytest.raises(
        UnsupportedOp, match=f"positions of a cache: {last + 1}, must be 0 to {last}"
    ):
        attends.run(RowTable.of(2, last - 1, more))


# --- At the limits --------------------------------------------------------------------------------


def test_the_widest_heads_and_the_most_rows_work(engine):
    """Heads of the largest width, half zeros, give the results of heads of half the width."""
    rng, rows = cases.rng_of("widest"), LIMITS.rows
    shape = {"n_heads": 2, "kv_heads": 1, "rotated": 32, "halves": False, "dtype": np.float32}
    narrow = cases.heads(rng, rows, 0, width=LIMITS.head // 2, **shape)
    wide = cases.heads(rng, rows, 0, width=LIMITS.head, **shape)
    wide.qkv[:] = 0
    wide.qkv.reshape(rows, 4, -1)[:, :, : LIMITS.head // 2] = narrow.qkv.reshape(rows, 4, -1)
    wide.cos[:], wide.sin[:] = narrow.cos, narrow.sin
    results = []
    for layer in (narrow, wide):
        program = Recorded(engine)
        cases.rope(program, layer, 0)
        (out,) = cases.attend(program, layer, 0)
        program.ops[1].u.attention.scale = 0.1
        assert program.run() == len(program)
        results.append(out.reshape(rows, 2, -1)[:, :, : LIMITS.head // 2])

    same(results[1], results[0])


def test_the_most_experts_work(engine):
    rng = cases.rng_of("experts")
    scores = rng.standard_normal((2, LIMITS.experts), dtype=np.float32)
    program = Recorded(engine)
    expert_weights, scatter, gather, groups = delta_cases.route(program, scores, LIMITS.experts, 3)
    assert program.run(RowTable.of(2)) == len(program)

    assert expert_weights.shape == (2, 3)
    chosen = {int(e) for row in scores for e in np.argsort(-row)[:3]}
    assert {int(matrix) for matrix, rows, _ in groups.view(GROUP).tolist() if rows} == chosen
    assert sorted(gather.tolist()) == [0, 0, 0, 1, 1, 1]
    assert sorted(scatter.ravel().tolist()) == list(range(6))


def test_a_product_wider_than_a_threads_memory_goes_through_it_in_pieces():
    """A chunk is a 256th of 70000 columns times 512 rows: 560 KB, more than a thread's 512 KB."""
    x = np.arange(LIMITS.rows, dtype=np.float32)[:, None]
    w = np.arange(70000, dtype=np.float32)[:, None]
    with CpuDevice(threads=2) as device:
        packed = device.pack(QTensor.quantize(w, "f32"))
        y = np.empty((len(x), len(w)), np.float32)
        device.matmul(x, packed, y)

    assert (y == x * w.T).all()


def test_experts_wider_than_a_threads_memory_go_through_it_in_pieces(engine):
    """All rows go to one of many experts, but the chunks divide the panels of all experts."""
    experts, n, k, rows = 100, 2656, 32, 505
    rng = cases.rng_of("wide experts")
    w = rng.integers(-9, 10, (n, k)).astype(np.float32)
    stack = np.zeros((experts, n, k), np.float32)
    stack[7] = w
    x = rng.integers(-9, 10, (rows, k)).astype(np.float32)
    groups = np.zeros(experts, GROUP)
    groups[0] = 7, rows, 0
    routing = Routing(empty(rows, 1), empty(rows, 1, np.int64), empty(rows, 1, np.int64).ravel(),
                      groups, experts)  # fmt: skip
    program, source, y = Recorded(engine), Input(rows, k, quantised=False), empty(rows, n)
    source.values[:] = x
    image = cases.packed_stack(program, QTensor.quantize(stack, "f16"))
    program.matmul(source, [image], y, routing=routing)

    assert program.run(RowTable.of(rows)) == len(program)

    assert (y == x @ w.T).all()
