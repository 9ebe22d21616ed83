"""Test that `npurt.matmul` multiplies rows with outliers in float16, and other rows in int8."""

import numpy as np
import pytest

import npurt
from npurt.errors import DeviceFull, NumericsError
from npurt.rknpu.device.adaptive import AdaptivePacked
from npurt.rknpu.device.device import open_rknpu

NAMES = ["rknpu:sim", "rknpu:sim-vendor"]


def case(k, n=96, outlier=3e3, rows=8):
    """Return x, half of whose rows have an outlier, and a weight ``[K, N]`` that ignores it."""
    rng = np.random.default_rng(k)
    x, w = (rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, k), (k, n)))
    w[7] = 0
    x[: rows // 2, 7] = outlier
    return x, w


def errors(x, w, device):
    """Return the relative error of each row of x, and the packed weight."""
    packed = npurt.pack(w, "q8_0", device=device)
    exact = x.astype(np.float64) @ w
    y = npurt.matmul(x, packed, verify="always")
    return np.linalg.norm(y - exact, axis=1) / np.linalg.norm(exact, axis=1), packed


@pytest.mark.parametrize("device", NAMES)
@pytest.mark.parametrize("k", [64, 256, 1024, 1536])
@pytest.mark.parametrize("outlier", [30, 3e3, 1e5])
def test_an_outlier_that_the_weight_ignores_costs_no_more_than_on_the_cpu(device, k, outlier):
    """With an outlier of 3e3, int8 alone has errors of 0.6 to 1.5 of the result; Q8_0 has 0.5 %."""
    x, w = case(k, outlier=outlier)

    error, packed = errors(x, w, device)
    on_cpu, _ = errors(x, w, "cpu")

    assert (error[:4] <= np.maximum(on_cpu[:4], 0.01)).all()
    assert (error < 0.03).all()
    assert not any(row.failed for row in npurt.report(device).rows)
    assert packed.packed.float16 is not None or outlier == 30


@pytest.mark.parametrize("k", [64, 1024, 4096])
def test_ordinary_rows_take_one_pass_and_no_memory(k):
    x, w = case(k, outlier=1)

    error, packed = errors(x, w, "rknpu:sim")

    assert isinstance(packed.packed, AdaptivePacked)
    assert packed.packed.float16 is None
    assert packed.nbytes == packed.packed.int8.nbytes
    assert (error < 0.03).all()


def test_a_row_does_not_depend_on_the_rows_beside_it():
    x, w = case(256, rows=9)
    packed = npurt.pack(w, "q4_0", device="rknpu:sim")
    together = npurt.matmul(x, packed)

    alone = np.concatenate([npurt.matmul(row[None], packed) for row in x])

    np.testing.assert_array_equal(together, alone)


@pytest.fixture
def device(simulator):
    with open_rknpu(NAMES[0]) as opened:
        yield opened


def test_without_memory_for_it_all_rows_take_int8(device, monkeypatch):
    x, w = case(256)
    packed = device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=None)

    def full(*_):
        raise DeviceFull("no room", remedy="none", call="create", code=12)

    monkeypatch.setattr(device, "upload", full)
    y = npurt.matmul(x, npurt.PackedWeight(packed), verify="always")

    plain = device.pack
    monkeypatch.undo()
    wanted = npurt.matmul(x, npurt.PackedWeight(plain(packed.tensor)))
    np.testing.assert_array_equal(y, wanted)
    assert packed.nbytes == packed.int8.nbytes


def test_a_weight_that_float16_cannot_hold_takes_int8(device):
    x, w = case(256)
    w[3, 5] = 1e5
    packed = device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=None)

    y = npurt.matmul(x, npurt.PackedWeight(packed), verify="always")

    assert np.isfinite(y).all()
    assert packed.float16 is packed.int8


def test_a_lost_npu_gets_both_images_back(device, simulator):
    x, w = case(256)
    packed = npurt.PackedWeight(device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=None))
    wanted = npurt.matmul(x, packed)

    device._restarts.surviving(device._reopen, device._reopen)

    np.testing.assert_array_equal(npurt.matmul(x, packed), wanted)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_that_is_not_finite_is_named(device, value):
    x, w = case(256)
    x[5, 100] = value
    packed = device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=None)

    with pytest.raises(NumericsError, match="row 5"):
        device.matmul(x, packed, np.empty((8, 96), np.float32))


def test_an_image_that_nobody_has_any_more_leaves_the_npu(device):
    x, w = case(256)
    tensor = npurt.QTensor.quantize(w.T, "q8_0")
    for _ in range(3):
        npurt.matmul(x, npurt.PackedWeight(device.pack(tensor, int16=None)))

    device.pack(tensor)

    assert len(device._weights._packed) <= 1


# --- Weights without memory -----------------------------------------------------------------------


def test_outliers_stay_in_float16_after_a_restart_without_room_for_weights(device, simulator):
    x, w = case(256)
    packed = device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=None)
    wanted, y = np.empty((2, 8, 96), np.float32)
    device.matmul(x, packed, wanted)
    simulator.set("memory=1000 fault=eio@submit")
    with pytest.raises(DeviceFull):
        device.matmul(x, packed, y)
    simulator.set("memory=0")

    device.matmul(x, packed, y)

    np.testing.assert_array_equal(y, wanted)


def test_outliers_stay_in_float16_after_ctrl_c_during_a_restart(device, simulator, monkeypatch):
    x, w = case(256)
    packed = device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=None)
    wanted, y = np.empty((2, 8, 96), np.float32)
    device.matmul(x, packed, wanted)

    def interrupted():
        raise KeyboardInterrupt

    simulator.set("fault=eio@submit")
    monkeypatch.setattr(device, "_connect", interrupted)
    with pytest.raises(KeyboardInterrupt):
        device.matmul(x, packed, y)
    monkeypatch.undo()

    device.matmul(x, packed, y)

    np.testing.assert_array_equal(y, wanted)


def test_a_check_after_a_shortage_of_memory_finds_products_right(simulator):
    """With "always" the probe is made before the shortage, with "off" after it."""
    x, w = case(256)
    exact = x.astype(np.float64) @ w
    for first in ("off", "always"):
        packed = npurt.pack(w, "q8_0", device=NAMES[0])
        npurt.matmul(x, packed, verify=first)
        simulator.set("memory=1000 fault=eio@submit")
        with pytest.raises(DeviceFull):
            npurt.matmul(x, packed)
        simulator.set("memory=0")

        y = npurt.matmul(x, packed, verify="always")

        assert (np.linalg.norm(y - exact, axis=1) < 0.03 * np.linalg.norm(exact, axis=1)).all()
    assert not any(row.failed for row in npurt.report(NAMES[0]).rows)


@pytest.mark.parametrize("int16", [None, False, True])
def test_what_threads_read_of_a_weight_is_the_same_during_a_restart(device, monkeypatch, int16):
    """Other threads read the data for rows with outliers and for checks without the lock."""
    x, w = case(256)
    packed = device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=int16)
    device.matmul(x, packed, np.empty((8, 96), np.float32))

    def read():
        rows = slice(5, 70)
        values = packed.multiplied(rows)
        outliers = [packed.outlier_rows(x)] if int16 is None else []
        bounds = packed.error(rows), packed.floor(rows), packed.peak(rows, np.ones(values.shape[1]))
        return [*outliers, values, *bounds, device.multiplied(x, packed)]

    before, during, connect = read(), [], device._connect

    def look():
        during.extend(read())
        return connect()

    monkeypatch.setattr(device, "_connect", look)
    device._restarts.surviving(device._reopen, device._reopen)

    assert during
    for one, other in zip(before, during, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_shortage_after_a_restart_does_not_keep_outliers_in_int8(device, simulator):
    """There is no float16 image yet, and there is no memory for either image."""
    x, w = case(256)
    x, exact = x[:4], x[:4].astype(np.float64) @ w
    packed = device.pack(npurt.QTensor.quantize(w.T, "q8_0"), int16=None)
    y = np.empty((4, 96), np.float32)
    simulator.set("memory=1000 fault=eio@create")
    with pytest.raises(DeviceFull):
        device.matmul(x, packed, y)
    simulator.set("memory=0")

    device.matmul(x, packed, y)

    assert (np.linalg.norm(y - exact, axis=1) < 0.03 * np.linalg.norm(exact, axis=1)).all()
