"""Tests of verification in `npurt.matmul`: a wrong product is computed again and reported."""

import contextlib
import threading

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.errors import SettingError, VerificationFailed
from npurt.quant.tensor import QTensor
from npurt.runtime.api.products import Products
from npurt.runtime.open.devices import open_device
from tests.runtime.fake import FakeDevice

K, N = 64, 40


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def integers(seed, *shape):
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


class Lying(FakeDevice):
    """A device that changes one element of each product in *when*, int8 products included."""

    def __init__(self, when, **options):
        super().__init__(**options, meddle=self._lie)
        self.when = when

    def _lie(self, index, y):
        if index in self.when:
            y[0, 5] += 1000

    def matmul_i8(self, a, b):
        y = self.cpu.matmul_i8(a, b)
        self._lie(self.products, y)
        self.products += 1
        return y


@pytest.fixture
def use(monkeypatch):
    """Return a function that makes a device the one that all products use."""

    def shared(device):
        products = Products(device)
        monkeypatch.setattr("npurt.runtime.api.packed_weight.shared", lambda name: products)
        monkeypatch.setattr("npurt.runtime.api.packed_weight._used", {products: None})
        return device

    return shared


def counts():
    """Return device -> (calls, verified, failed) of its products."""
    rows = npurt.report().rows
    return {r.actual: (r.calls, r.verified, r.failed) for r in rows}


def test_a_wrong_product_is_computed_again_and_said_to_be(use):
    use(Lying({0}))
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")
    wanted = npurt.matmul(x, npurt.PackedWeight(CpuDevice(1).pack(w.tensor)))

    with pytest.warns(RuntimeWarning, match="fake computed a wrong product.*computed it again"):
        y = npurt.matmul(x, w)

    np.testing.assert_array_equal(y, wanted)
    assert counts() == {"fake": (1, 1, 1), "cpu": (1, 1, 0)}
    report = npurt.report()
    assert "quarantined: fake computed a wrong product" in report.table()
    assert "1 wrong" in report.line()
    assert report.fallbacks() == [
        "q8_0: planned fake, ran on cpu: fake computed a wrong product with it"
    ]
    assert w.device == "cpu"  # later products of the weight run there too
    np.testing.assert_array_equal(npurt.matmul(x, w), wanted)
    np.testing.assert_array_equal(npurt.matmul(x, w, device="fake"), wanted)


def test_a_warning_names_the_line_that_multiplied(use):
    use(Lying({0, 1}))
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")

    for call in (
        lambda: npurt.matmul(x, w),
        lambda: npurt.matmul(x, QTensor(w.tensor.blocks, "q8_0").T),
    ):
        with pytest.warns(RuntimeWarning) as caught:
            call()
        assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "product",
    [
        npurt.matmul,
        lambda x, w: x @ w,
        lambda x, w: x.tolist() @ w,
        lambda x, w: w.T @ x.T,
        np.dot,
        lambda x, w: np.einsum("ik,kn", x, w),
    ],
)
def test_a_warning_names_that_line_for_every_form_of_a_product(use, product):
    use(Lying({0}))
    w = npurt.pack(numbers(1, K, N), "q8_0")

    with pytest.warns(RuntimeWarning, match="wrong product") as caught:
        product(numbers(0, 3, K), w)

    assert [warning.filename for warning in caught] == [__file__]


def test_the_cpu_is_verified_too(use):
    """A flipped bit in a weight of the CPU is found; scalar kernels then compute the product."""
    device = use(CpuDevice(1))
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q4_0")
    wanted = npurt.matmul(x, w)
    w.packed.image.data[100] ^= 0x40
    assert (npurt.matmul(x, w, verify="off") != wanted).any()

    with pytest.warns(RuntimeWarning, match="cpu computed a wrong product"):
        y = npurt.matmul(x, w, verify="always")

    np.testing.assert_array_equal(y, wanted)
    assert w.packed.device is not device
    assert w.packed.device.engine.isa_name == "scalar"


def test_the_first_products_of_each_weight_are_checked_then_some(use):
    """For each weight, the first product of one row and the first of several rows are checked."""
    use(FakeDevice())
    weights = [npurt.pack(numbers(seed, K, N), "q8_0") for seed in (1, 2)]
    x = numbers(0, 3, K)
    for w in weights:
        for rows in (1, 3):
            npurt.matmul(x[:rows], w)
    assert counts() == {"fake": (4, 4, 0)}

    for _ in range(300):
        npurt.matmul(x, weights[0])

    calls, verified, failed = counts()["fake"]
    assert (calls, failed) == (304, 0)
    assert 4 <= verified < 4 + 20  # 3 expected; 20 more have a chance of 1e-10


@pytest.mark.parametrize(("how", "checked"), [("off", 0), ("always", 30)])
def test_other_modes_check_none_or_all(use, how, checked):
    use(FakeDevice())
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")

    for _ in range(30):
        npurt.matmul(x, w, verify=how)

    assert counts() == {"fake": (30, checked, 0)}


def test_without_verification_a_lie_goes_through(use):
    use(Lying({0, 1}))
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")
    b = integers(1, K, N)

    assert (npurt.matmul(x, w, verify="off") != npurt.matmul(x, w, verify="off")).sum() == 0
    assert abs(npurt.matmul(x, w) - x @ w.dequantize()).max() < 1
    use(Lying({0}))
    wrong = npurt.matmul(integers(0, 3, K), b, verify="off")
    assert (wrong != integers(0, 3, K).astype(int) @ b).sum() == 1


def test_the_environment_says_how_much_unless_the_call_does(use, monkeypatch):
    use(FakeDevice())
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")
    monkeypatch.setenv("NPURT_VERIFY", "off")
    npurt.matmul(x, w)
    assert counts() == {"fake": (1, 0, 0)}

    npurt.matmul(x, w, verify="always")

    assert counts() == {"fake": (2, 1, 0)}


def test_the_first_product_that_may_be_checked_is(use):
    """A product with verify="off" does not count as the first product."""
    use(FakeDevice())
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")
    npurt.matmul(x, w, verify="off")
    npurt.matmul(x, w)

    assert counts() == {"fake": (2, 1, 0)}


@pytest.mark.parametrize("how", ["sometimes", "ALWAYS", 5, b"off", ["off"], True])
def test_a_mode_that_does_not_exist_is_refused(how):
    for b in (numbers(1, K, N), npurt.pack(numbers(1, K, N))):
        with pytest.raises(SettingError, match="mode"):
            npurt.matmul(numbers(0, 3, K), b, verify=how)


def test_a_weight_packed_for_one_product_is_checked_by_its_shape(use):
    use(FakeDevice())
    x, tensor = numbers(0, 3, K), QTensor.quantize(numbers(1, N, K), "q8_0")
    for _ in range(3):
        npurt.matmul(x, tensor.T)

    calls, verified, _ = counts()["fake"]
    assert calls == 3
    assert 1 <= verified < 3


def test_what_is_wrong_twice_is_an_error(use, monkeypatch):
    use(Lying({0}))
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")
    monkeypatch.setattr("npurt.runtime.api.products.is_right", lambda *_, **__: False)

    with (
        pytest.raises(VerificationFailed, match="fake and on the CPU"),
        pytest.warns(RuntimeWarning),
    ):
        npurt.matmul(x, w)


def test_a_wrong_int8_product_is_computed_again(use):
    use(Lying({0}))
    a, b = integers(0, 7, K), integers(1, K, N)

    with pytest.warns(RuntimeWarning, match="fake computed a wrong int8 product"):
        y = npurt.matmul(a, b)

    np.testing.assert_array_equal(y, a.astype(int) @ b)
    (row,) = npurt.report().rows
    assert (row.calls, row.verified, row.failed) == (1, 1, 1)
    assert "quarantined" in npurt.report().table()


def test_every_wrong_element_of_an_int8_product_is_found(use):
    """A flip of the lowest bit, a middle bit or the sign is found; the extreme sums pass."""
    device = use(FakeDevice())
    extreme = np.full((2, 500), -128, np.int8)
    for a, b in ((integers(0, 7, K), integers(1, K, N)), (extreme, extreme.T[:, :1])):
        right = CpuDevice(1).matmul_i8(a, b)
        for at in range(right.size):
            for bit in (0, 15, 31):
                wrong = right.copy()
                wrong.view(np.uint32).reshape(-1)[at] ^= np.uint32(1 << bit)
                device.matmul_i8 = lambda a, b, wrong=wrong: wrong.copy()
                with pytest.warns(RuntimeWarning):
                    np.testing.assert_array_equal(npurt.matmul(a, b, verify="always"), right)
        device.matmul_i8 = lambda a, b, right=right: right
        npurt.matmul(a, b, verify="always")


def test_threads_that_share_a_weight_get_right_products(use):
    use(Lying(range(100)))
    x, w = numbers(0, 3, K), npurt.pack(numbers(1, K, N), "q8_0")
    wanted = npurt.matmul(x, npurt.PackedWeight(CpuDevice(1).pack(w.tensor)))
    results = []

    def work():
        results.extend(npurt.matmul(x, w, verify="always") for _ in range(10))

    def work_together():
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with pytest.warns(RuntimeWarning):
        work_together()

    assert len(results) == 40
    for y in results:
        np.testing.assert_array_equal(y, wanted)


@pytest.fixture
def unused(monkeypatch):
    """Open new devices, as in a process that has not multiplied yet."""
    opened = {}
    with contextlib.ExitStack() as stack:

        def fresh(name):
            if name not in opened:
                opened[name] = Products(open_device(name))
                stack.callback(opened[name].close)
            return opened[name]

        monkeypatch.setattr("npurt.runtime.api.packed_weight._shared", fresh)
        monkeypatch.setattr("npurt.runtime.api.packed_weight._used", {})
        yield


@pytest.mark.usefixtures("unused")
def test_a_report_has_the_products_of_every_device_under_whatever_name():
    assert "nothing ran" in npurt.report().line()
    x, b = numbers(0, 3, K), numbers(1, K, N)
    for name in ("auto", "cpu", "rknpu:sim"):
        npurt.matmul(x, npurt.pack(b, "q8_0", device=name))
        npurt.matmul(x, b) if name == "auto" else None  # computed by numpy: it has no row

    assert counts_of(npurt.report()) == {"cpu": 2, "rknpu:sim": 1}
    assert "cpu: " in npurt.report().line()
    assert "rknpu:sim: " in npurt.report().line()
    for name in ("auto", "cpu"):
        assert counts_of(npurt.report(name)) == {"cpu": 2}
        assert "rknpu" not in npurt.report(name).table()
    assert counts_of(npurt.report("rknpu:sim")) == {"rknpu:sim": 1}


@pytest.mark.usefixtures("unused")
def test_a_device_may_be_opened_while_a_report_is_made(monkeypatch):
    npurt.pack(numbers(0, K, N), "q8_0", device="cpu")
    whole = Products.report

    def report(products):
        npurt.pack(numbers(0, K, N), "q8_0", device="numpy")  # as another thread may do
        return whole(products)

    monkeypatch.setattr(Products, "report", report)
    assert "nothing ran" in npurt.report().line()


def counts_of(report):
    """Return the number of products by device."""
    return {total["device"]: total["calls"] for total in report.totals()}


@pytest.mark.parametrize("device", ["cpu", "hexagon:sim", "rknpu:sim", "rknpu:sim-vendor"])
def test_every_device_is_verified(device):
    """Verification passes on every device, for rows from the smallest numbers to the largest."""
    x, w = numbers(0, 8, 256), npurt.pack(numbers(1, 256, 33), "q8_0", device=device)
    x *= 2.0 ** np.linspace(-140, 118, 8, dtype=np.float32)[:, None]
    before = sum(row.verified for row in npurt.report(device).rows)

    for rows in (8, 1):
        y = npurt.matmul(x[:rows], w)
        size = abs(x[:rows]).max(axis=1, keepdims=True)
        exact = x[:rows].astype(float) @ w.dequantize()
        normal = size[:, 0] > 1e-36  # smaller activations are zero on the CPU and the RK3588
        assert (abs(y - exact) <= 0.4 * size + 1e-36)[normal].all()

    after = npurt.report(device).rows
    assert sum(row.verified for row in after) == before + 2
    assert not any(row.failed for row in after)
