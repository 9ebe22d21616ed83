"""Tests of verification over the whole range of float32: underflow, overflow and biases.

The tests are a short form of bench/soak_verification.py, and products of known values.
"""

import itertools
import subprocess
import sys

import numpy as np
import pytest

import npurt
from bench import soak_verification
from npurt.cpu.device import CpuDevice
from npurt.errors import VerificationFailed
from npurt.quant.tensor import QTensor
from tests.conftest import PROJECT
from tests.cpu.cases import weight
from tests.llm import tiny, variants
from tests.runtime.fake import FakeDevice, Products
from tests.runtime.test_parts_elsewhere import DeltaDevice, nothing_but

INF, NAN = np.float32(np.inf), np.float32(np.nan)


@pytest.fixture(scope="module")
def cpu():
    with CpuDevice(2) as device:
        yield device


# --- a short soak ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        ("cpu", 4000),
        ("arm", 1000),
        ("hexagon", 4000),
        ("hexagon_sim", 2000),
        ("rknpu_sim", 3000),
        ("delta_cpu", 2000),
        ("delta_hexagon", 200),
        ("delta_hexagon_sim", 1000),
    ],
)
def test_what_is_right_passes_and_what_is_off_does_not(kind, checks):
    tally = soak_verification.soak(kind, checks)

    assert tally.good, str(tally)
    assert tally.checks >= checks
    assert tally.spoilt > 0


def test_no_alarm_where_subnormal_numbers_count_as_zero():
    """No check raises an alarm; they run in a separate process, as the setting is per thread."""
    script = PROJECT / "bench/soak_verification.py"
    kinds = ["cpu", "hexagon", "delta_cpu"]
    command = [sys.executable, script, "--flush", "--checks", "1000", "--kinds", *kinds]

    done = subprocess.run(command, text=True, capture_output=True)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 alarms") == len(kinds)


# --- products -------------------------------------------------------------------------------------


def products_of(cpu, w, x, remote=False, **options):
    tensor = w if isinstance(w, QTensor) else QTensor.quantize(w, "f32")
    device = FakeDevice(cpu) if remote else None
    return Products(cpu, tensor, x.astype(np.float32), device=device, **options)


@pytest.mark.parametrize("remote", [False, True])
def test_float_weights_of_any_size_are_right(cpu, remote):
    rng = np.random.default_rng(0)
    for size, of_x in itertools.product(
        [1e-42, 1e-38, 1e-20, 1e20, 1e37], [1e-40, 1e-20, 1, 1e20, 1e37]
    ):
        w, x = (rng.standard_normal(shape) for shape in ((40, 64), (9, 64)))
        products = products_of(cpu, w * size, x * of_x, remote)
        products.run()
        assert products.counts() == (1, 1, 0), (size, of_x)


def test_an_error_in_weights_whose_squares_overflow_float32_is_found(cpu):
    rng = np.random.default_rng(0)
    products = products_of(cpu, rng.standard_normal((40, 64)) * 1e20, rng.standard_normal((9, 64)))
    assert products.counts() == (0, 0, 0)
    values = products.placed[0].packed.image.data.view(np.float32)
    values[100] *= np.float32(1.01)

    with pytest.raises(VerificationFailed):
        products.run()


def put(value, at):
    def meddle(index, y):
        if index == 0:
            y[at] = value

    return meddle


@pytest.mark.parametrize("fmt", ["f32", "q8_0"])
@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_result_beyond_float32_is_infinite_and_right(cpu, fmt, remote, biased):
    """A product with one result beyond float32 among finite ones is verified as right."""
    w = np.ones((20, 64), np.float32)
    w[7] = 1000
    w[9] = 0
    x = np.full((3, 64), 1e36, np.float32) * np.array([[1], [1e-35], [-1]], np.float32)
    bias = np.arange(20, dtype=np.float32) if biased else None
    products = products_of(cpu, QTensor.quantize(w, fmt), x, remote, bias=bias)

    y = products.run()

    assert products.counts() == (1, 1, 0)
    assert y[0, 7] == INF
    assert y[2, 7] == -INF
    assert np.isfinite(np.delete(y, 7, axis=1)).all()


@pytest.mark.parametrize("wrong", [INF, NAN, np.float32(5e37), np.float32(0)])
def test_beside_a_result_that_overflowed_each_element_is_compared(cpu, wrong):
    w = np.ones((20, 64), np.float32)
    w[7] = 1000
    x = np.full((1, 64), 1e36, np.float32)
    clean = products_of(cpu, w, x).run()
    lying = FakeDevice(cpu, meddle=put(wrong, (0, 3)))
    products = Products(cpu, QTensor.quantize(w, "f32"), x, device=lying)

    np.testing.assert_array_equal(products.run(), clean)
    assert products.counts() == (1, 1, 1)


def test_sums_that_overflow_on_the_way_are_right(cpu):
    """2e38 + 2e38 - 2e38 - 2e38 is not finite in float32, and such a result passes."""
    x = np.array([[1, 1, -1, -1]], np.float32)
    products = products_of(cpu, np.full((16, 4), 2e38, np.float32), x)

    assert not np.isfinite(products.run()).any()
    assert products.counts() == (1, 1, 0)


def test_scales_whose_product_overflows_where_codes_are_zero_are_right(cpu):
    """MXFP4 scales reach 2^127: 0 times infinity gives NaN instead of 0, and the result passes."""
    tensor = weight(np.random.default_rng(0), "mxfp4", 16, 32)
    tensor.blocks["e"][:], tensor.blocks["qs"][:] = 254, 0
    products = products_of(cpu, tensor, np.full((1, 32), 1e30))

    assert np.isnan(products.run()).all()
    assert products.counts() == (1, 1, 0)


@pytest.mark.parametrize("value", [INF, NAN])
def test_of_rows_of_x_that_are_not_finite_nothing_is_said(cpu, value):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 64)).astype(np.float32)
    x[1, 5] = value
    w = rng.standard_normal((20, 64))
    for remote in (False, True):
        products = products_of(cpu, w, x, remote)
        y = products.run()
        assert products.counts() == (1, 1, 0)
        assert not np.isfinite(y[1]).any()
        assert np.isfinite(y[[0, 2]]).all()
    lying = FakeDevice(cpu, meddle=put(np.float32(1e3), (2, 3)))
    products = Products(cpu, QTensor.quantize(w, "f32"), x, device=lying)
    products.run()
    assert products.counts() == (1, 1, 1)


@pytest.mark.parametrize("fmt", ["f32", "q8_0", "q4_k"])
def test_a_bias_that_is_far_larger_than_the_product_is_right(cpu, fmt):
    """The check allows for the rounding of the sum, which is 2^-24 of the bias."""
    rng = np.random.default_rng(0)
    tensor = QTensor.quantize(rng.standard_normal((40, 256)), fmt)
    for size in (1e3, 1e10, 1e30):
        bias = (size * rng.standard_normal(40)).astype(np.float32)
        products = products_of(cpu, tensor, rng.standard_normal((9, 256)), bias=bias)
        products.run()
        assert products.counts() == (1, 1, 0)


# --- models ---------------------------------------------------------------------------------------


def scaled(model, folder, factors):
    """Return the path of a tiny model with tensors scaled by *factors* (part of name -> factor)."""
    file = tiny.read(tiny.path(model, "f32"))
    arrays = variants.values(file)
    for name, factor in itertools.product(list(arrays), factors):
        if factor in name:
            arrays[name] = arrays[name] * np.float32(factors[factor])
    path = folder / "scaled.gguf"
    path.write_bytes(variants.with_values(file, arrays).encode())
    return path


def evaluated(path, device, ids):
    """Return the logits of *ids* and the report."""
    with npurt.Llama(path, device, n_ctx=160, n_threads=2, verify="always") as llm:
        rows = [llm.eval(ids[:20]), *(llm.eval([token]) for token in ids[20:])]
        return np.concatenate(rows), llm.report()


def assert_no_alarm(report):
    assert sum(row.verified for row in report.rows) > 0
    assert not any(row.failed for row in report.rows)
    assert not any("quarantined" in note or "goes on" in note for note in report.notes)


def test_experts_that_overflow_are_right(tmp_path):
    """Products of experts, with one matrix for each group of rows, may overflow and still pass."""
    path = scaled("qwen3moe", tmp_path, {"ffn_down_exps": 1e38})

    with np.errstate(all="ignore"):
        y, report = evaluated(path, "cpu", tiny.ids("qwen3moe", 24))

    assert not np.isfinite(y).all()
    assert_no_alarm(report)


@pytest.mark.parametrize("device", ["hexagon:sim", DeltaDevice])
def test_delta_nets_whose_numbers_underflow_are_right(tmp_path, device):
    """Gates near zero, with v of 1e-30 and beta of 1e-18, raise no alarm."""
    names = ("ssm_beta", "ssm_alpha", "ssm_conv1d", "ssm_out", "attn_qkv")
    path = scaled("qwen35", tmp_path, dict.fromkeys(names, 10))
    device = device if isinstance(device, str) else device(refuses=nothing_but())

    _, report = evaluated(path, device, tiny.ids("qwen35", 40))

    assert_no_alarm(report)
    assert any(row.op == "delta net" and row.verified for row in report.rows)
