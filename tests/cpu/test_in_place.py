"""Tests that a sum overwrites its first operand, unless a later op reads the operand."""

import numpy as np
import pytest

from npurt.cpu.device import CpuDevice
from npurt.device.segment import Limits
from npurt.graph.builder import Builder
from npurt.graph.rows import Rows
from npurt.graph.tensor import Dim
from npurt.testing import RandomWeights, reference
from tests.llm.reference import nmse
from tests.runtime.test_execute import FLOAT32

HALVES, PAIR = {"first": 32, "second": 32}, {"left": 32, "right": 32}
LIMITS = Limits(rows=16, positions=64, sequences=2, kv_dtype="f32")


@pytest.mark.parametrize("read_again", ["nothing", "the whole", "the other half", "the same half",
                                        "a half of the sum"])  # fmt: skip
def test_a_sum_of_columns_leaves_what_is_read_again(read_again):
    b, d = Builder("columns"), Dim("D", 64)
    x = b.embedding("embedding", b.tokens(), b.constant("table", Dim("V", 50), d))
    h = b.rms_norm("norm", x, b.constant("norm.weight", d), 1e-6)
    low = b.matmul("low", h, b.constant("low.weight", Dim("N", 32), d), role="low")
    whole = b.matmul("whole", h, b.constant("whole.weight", Dim("M", 64), d), role="whole")
    first, second = b.split(whole, HALVES)
    total = b.add("total", first, low, scale=0.5)
    if read_again == "a half of the sum":
        total, _ = b.split(b.add("wide", whole, b.gated_unit("pair", whole, whole)), PAIR)
    unit = b.gated_unit("unit", total, second)
    y = b.matmul("up", unit, b.constant("up.weight", d, Dim("N", 32)), role="up")
    if read_again == "the whole":
        y = b.add("again", whole, y)
    elif read_again == "the other half":
        y = b.matmul("again", second, b.constant("again.weight", d, Dim("N", 32)), role="again")
    elif read_again == "the same half":
        y = b.matmul("again", first, b.constant("again.weight", d, Dim("N", 32)), role="again")
    b.output(y, "logits")
    graph = b.build()
    weights, ids = RandomWeights(graph), np.arange(5)
    with CpuDevice(2) as cpu:
        made = cpu.compile(graph, weights, LIMITS).run({"tokens": ids}, Rows.of(5))

    assert nmse(made["logits"], reference(graph, weights, ids)) < FLOAT32
