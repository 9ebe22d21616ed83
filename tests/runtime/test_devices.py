"""Tests of device names: each opens the device it names, or raises an error with the reason."""

import threading

import numpy as np
import pytest

import npurt
from npurt.cpu.device import CpuDevice
from npurt.cpu.kernels import abi
from npurt.errors import DeviceNotFound, NpurtError, SettingError, UnknownDevice
from npurt.runtime.api.bench import bench_matmul
from npurt.runtime.open.devices import devices, open_device
from npurt.runtime.open.registry import BACKENDS, simulators


@pytest.mark.parametrize("name", ["cpu", "auto", None])
def test_the_cpu_is_always_there(name):
    with open_device(name, threads=1) as device:
        assert isinstance(device, CpuDevice)
        assert device.caps.name == "cpu"
        assert device.caps.detail.endswith("1 threads")
        assert not device.caps.simulated
        assert repr(device) == "<CpuDevice cpu>"


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """Simulate a machine without an NPU: no FastRPC library, no Rockchip node."""
    monkeypatch.setenv("NPURT_FASTRPC_LIBRARY", str(tmp_path / "absent.so"))


@pytest.mark.parametrize("name", ["hexagon", "hexagon:0", "hexagon:0/1", "rknpu", "rknpu:0"])
def test_a_device_that_is_not_there_is_said_so_by_name(name, bare):
    with pytest.raises(DeviceNotFound) as caught:
        open_device(name)
    assert f"device {name!r} cannot be used: " in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize("name", [*simulators(), "hexagon:sim-v73"])
def test_a_simulated_device_is_always_there(name):
    with open_device(name) as device:
        assert device.caps.name == name
        assert device.caps.simulated


@pytest.mark.parametrize("name", ["", "gpu", "CPU", "cpu:0", "cuda:0", " cpu"])
def test_what_is_no_device_name_is_refused_with_those_that_are(name):
    with pytest.raises(UnknownDevice) as caught:
        open_device(name)
    names = [*BACKENDS, *simulators()]
    assert all(name in caught.value.remedy for name in names)


@pytest.mark.parametrize("name", [None, "auto"])
def test_the_environment_names_the_device_when_nobody_does(monkeypatch, name):
    monkeypatch.setenv("NPURT_DEVICE", "a name")

    with pytest.raises(DeviceNotFound, match="'a name'"):
        open_device(name)
    with open_device("cpu", threads=1):
        pass


def test_devices_are_listed_with_what_they_are_or_why_not(bare):
    rows = devices()

    assert [row.device for row in rows] == list(BACKENDS)
    assert rows[0].found
    assert next(iter(abi.isas())) in rows[0].detail
    assert rows[-1].found  # numpy is always found
    for row in rows[1:-1]:
        assert not row.found
        assert "cannot be used: " in row.detail


@pytest.mark.parametrize(
    ("variable", "value"),
    [("NPURT_CPU_ISA", "nonsense"), ("NPURT_THREADS", "many"), ("NPURT_THREADS", "-1")],
)
def test_settings_that_break_a_device_are_its_reason(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)

    (cpu, *_) = devices()

    assert not cpu.found
    assert value in cpu.detail


# --- Behaviour of every device --------------------------------------------------------------------

NPUS = ("hexagon:sim", "rknpu:sim", "rknpu:sim-vendor")


def tensor(n, k, seed=0):
    return npurt.QTensor.quantize(inputs(n, k, seed), "q8_0")


def inputs(m, k, seed):
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)


def multiply(device, x, packed):
    out = np.full((len(x), packed.n), np.nan, np.float32)
    device.matmul(x, packed, out)
    return out


@pytest.mark.parametrize("name", ["cpu", *NPUS])
def test_a_closed_device_says_so_and_closes_again(name):
    device = open_device(name, threads=2)
    packed = device.pack(tensor(32, 64))
    device.close()
    device.close()

    with pytest.raises(NpurtError, match="closed"):
        multiply(device, inputs(1, 64, 1), packed)
    if name != "cpu":
        with pytest.raises(NpurtError, match="closed"):
            device.pack(tensor(32, 64))


@pytest.mark.parametrize("name", NPUS)
def test_threads_take_turns(name):
    wrong = []
    with open_device(name) as device:
        weights = [device.pack(tensor(48, 128, seed)) for seed in range(2)]
        xs = [inputs(m, 128, seed=m) for m in (1, 6)]
        wanted = [multiply(device, x, w) for x, w in zip(xs, weights, strict=True)]

        def work(i):
            for _ in range(60):
                if (multiply(device, xs[i], weights[i]) != wanted[i]).any():
                    wrong.append(i)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


# --- bench_matmul() -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q4_k", "q6_k", "iq4_nl", "mxfp4", "f16"])
def test_a_measured_product_is_off_by_int8_rounding_of_gaussian_activations(kind):
    """The largest of 32 values is 2.1 sigma on average, which gives a step of 2.1 / 127.

    The square of the step over 12 is 2.3e-5 of the activations' mean square, and so the NMSE of the
    product.  With f16 only sums are rounded.
    """
    row = bench_matmul(4, 512, 96, kind, device="cpu", threads=2, repetitions=2)

    assert (row["macs"], row["packets"], row["type"]) == (4 * 512 * 96, None, kind)
    assert row["seconds"] > 0
    assert row["bytes"] >= 512 * 96 / 2
    if kind == "f16":
        assert row["nmse"] < (512 * 2.0**-24) ** 2
    else:
        assert 1.5e-5 < row["nmse"] < 3.5e-5


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "iq4_nl", "mxfp4", "q4_k", "q6_k", "i8"])
def test_a_simulated_dsp_counts_packets_and_is_as_exact_as_int8_activations_are(kind):
    """i8 has one scale per row of 512 with its largest value at 3.1 sigma: an NMSE of 5e-5."""
    first, again = (
        bench_matmul(4, 512, 96, kind, device="hexagon:sim", repetitions=1) for _ in range(2)
    )

    assert first["packets"] > 4 * 512 * 96 / 256  # 256 MAC in a packet at most
    assert abs(first["packets"] - again["packets"]) < 16  # waiting for other threads takes a few
    assert 1.5e-5 < first["nmse"] < (1.5e-4 if kind == "i8" else 3.5e-5)


@pytest.mark.parametrize("device", ["cpu", "hexagon:sim", "rknpu:sim"])
def test_the_error_of_one_row_is_taken_over_as_many_as_that_of_some(device):
    """The error is the same for 1, 6 and 128 rows, since a row's bits do not depend on others."""
    errors = {
        bench_matmul(m, 512, 96, "q4_0", device=device, repetitions=1)["nmse"] for m in (1, 6, 128)
    }

    assert len(errors) == 1


def test_a_measured_integer_product_is_exact():
    row = bench_matmul(3, 131, 7, "i8", repetitions=1)

    assert (row["macs"], row["nmse"], row["bytes"]) == (3 * 131 * 7, 0, 131 * 7)


@pytest.mark.parametrize(
    ("m", "k", "n", "kind", "repetitions"),
    [
        (0, 32, 8, "q8_0", 1),
        (1, -1, 8, "q8_0", 1),
        (1, 32, 8, "q8_0", 0),
        (1, 33, 8, "q8_0", 1),
        (1, 32, 8, "q9_9", 1),
        (1, 256, 8, "q2_k", 1),
        (1, 131072, 1, "i8", 1),
    ],
)
def test_what_cannot_be_measured_is_refused(m, k, n, kind, repetitions):
    with pytest.raises(NpurtError) as caught:
        bench_matmul(m, k, n, kind, repetitions=repetitions)
    assert caught.value.remedy


def test_a_device_that_is_not_there_measures_nothing(bare):
    with pytest.raises(DeviceNotFound):
        bench_matmul(1, 32, 8, "q8_0", device="hexagon")
    with pytest.raises(SettingError):
        bench_matmul(1, 32, 8, "q8_0", threads=-1)
