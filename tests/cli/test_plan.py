"""`npurt plan`: how the weights of a model are stored on an NPU."""

import json

import numpy as np
import pytest

from npurt.llm.file.gguf import GGUF
from npurt.llm.measure.estimate import Exact, divergence
from npurt.quant.tensor import QTensor
from tests.llm import tiny


def test_every_matrix_has_a_row_and_the_sums_are_right(npurt):
    said = json.loads(npurt("plan", tiny.path(kind="q8_0"), "--quick", "--json").out)

    with GGUF(tiny.path(kind="q8_0")) as file:
        matrices = {n for n, info in file.tensors.items() if len(info.shape) == 2}
    rows = {row["tensor"]: row for row in said["tensors"]}
    assert set(rows) == matrices - {"token_embd.weight"}
    assert said["bytes"] == sum(row["nbytes"] for row in rows.values())
    assert sum(said["forms"].values()) == len(rows)
    assert rows["output.weight"]["form"] == "int8x2"
    assert rows["blk.0.attn_output.weight"]["form"] == "int8"
    assert all(0 < row["error"] < 3e-4 for row in rows.values())
    assert said["divergence"] is None


def test_experts_are_listed_as_what_each_of_them_is(npurt):
    path = tiny.path("qwen3moe", "q8_0")
    said = json.loads(npurt("plan", path, "--quick", "--json").out)
    assert said["bytes"] == sum(row["nbytes"] for row in said["tensors"])
    lines = npurt("plan", path, "--quick").out.splitlines()

    with GGUF(path) as file:
        stacks = {n: info.shape for n, info in file.tensors.items() if len(info.shape) == 3}
    found = {row["tensor"]: tuple(row["shape"]) for row in said["tensors"]}
    assert stacks
    assert found.items() >= stacks.items()
    assert not any("ffn_gate_inp" in name for name in found)  # the router stays on the CPU
    rows = {row["tensor"]: row for row in said["tensors"]}
    for name, shape in stacks.items():
        experts, n, k = shape
        assert rows[name]["form"] == "int8"
        # one code per weight, one scale per row
        assert rows[name]["nbytes"] == experts * (n * k + 4 * n)
        (line,) = [line for line in lines if line.startswith(name)]
        assert " x ".join(map(str, shape)) in line


def test_the_divergence_is_measured_in_simulation(npurt):
    lines = npurt("plan", tiny.path(kind="q8_0")).out.splitlines()

    assert lines[0].split()[0] == "tensor"
    assert "MB on the NPU" in lines[-7]
    assert "(simulated, " in lines[-1]


def test_what_speed_to_expect_is_a_range_by_driver_and_clock(npurt):
    path = tiny.path(kind="q8_0")
    said = json.loads(npurt("plan", path, "--quick", "--json").out)
    rates, hexagon = said["speed"], said["hexagon_speed"]
    lines = npurt("plan", path, "--quick").out.splitlines()

    assert [(each["driver"], each["mhz"], each["stock"]) for each in rates] == [
        ("rknpu", 1000, True),
        ("rocket", 200, True),
        ("rocket", 600, False),
    ]
    assert (hexagon["arch"], hexagon["threads"]) == (68, 2)
    assert "Hexagon v68 of a Radxa Dragon Q6A" in lines[-1]
    for each, line in zip([*rates, hexagon], lines[-4:], strict=True):
        for minimum, expected, maximum in (each["prompt"], each["decode"]):
            assert 0 < minimum < expected < maximum
        assert each["decode"][1] < each["prompt"][1]
        assert f" at {each['mhz']:.0f} MHz" in line
        minimum, expected, maximum = each["decode"]
        assert line.endswith(f"decoding {expected:.3g} ({minimum:.3g} to {maximum:.3g})")
    assert rates[1]["decode"][1] < rates[2]["decode"][1] < rates[0]["decode"][1]
    assert "never timed" in lines[-5]


def test_exact_products_diverge_from_nothing():
    apart = divergence(tiny.path(kind="q8_0"), Exact(), tokens=32)

    assert apart.tokens == 32
    assert apart.mean == apart.worst == 0
    assert apart.same_best == 1


@pytest.mark.parametrize("fmt", ["f32", "q4_0", "q8_0"])
def test_the_exact_device_multiplies_what_the_file_means(fmt):
    rng = np.random.default_rng(0)
    tensor = QTensor.quantize(rng.standard_normal((40, 256)).astype(np.float32), fmt)
    x = rng.standard_normal((3, 256)).astype(np.float32)
    y = np.empty((3, 40), np.float32)
    device = Exact()

    device.matmul(x, device.pack(tensor), y)

    exact = x.astype(np.float64) @ tensor.dequantize().T.astype(np.float64)
    bound = 256 * 2.0**-24 * (abs(x) @ abs(tensor.dequantize()).T)
    assert (abs(y - exact) <= bound).all()


@pytest.mark.parametrize(
    ("flags", "has"),
    [
        (["--graph"], "blk.0.attn_output f32[T, D=128] = MatMul(blk.0.attention,"),
        (["--graph", "--json"], '"op": "Attention"'),
        (["--dot"], 'digraph "llama" {'),
    ],
)
def test_the_graph_is_printed(npurt, flags, has):
    assert has in npurt("plan", tiny.path("llama3", "f32"), *flags).out
