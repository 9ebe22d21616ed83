"""Test the Hexagon as a device, on the simulator: products, lifetimes, device strings."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.device.device import MatMul
from npurt.errors import (
    DeviceNotFound,
    LayoutError,
    NumericsError,
    SettingError,
    UnsupportedOp,
)
from npurt.hexagon.device.device import HexagonDevice, open_hexagon
from npurt.hexagon.fastrpc import lib
from npurt.quant.tensor import QTensor
from tests.hexagon.products import assert_is_product, inputs, multiply, tensor
from tests.hexagon.simulator import connection, tell
from tests.hexagon.test_session import forked, refused
from tests.limits import HANG_SECONDS
from tests.llm import tiny

FORMATS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q6_k", "iq4_nl", "mxfp4", "f16", "f32")


# --- Products -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("m", [1, 5])
def test_every_format_multiplies(shared, kind, m):
    packed = shared.pack(tensor(96, 256, kind))
    x = inputs(m, 256)

    assert_is_product(shared, x, packed, multiply(shared, x, packed))
    assert packed.nbytes > 0


@given(st.integers(1, 70), st.integers(1, 4), st.integers(1, 9), st.sampled_from(FORMATS[:5]))
def test_any_shape_multiplies(shared, n, blocks, m, kind):
    packed = shared.pack(tensor(n, 32 * blocks, kind, seed=n))
    x = inputs(m, 32 * blocks, seed=m)

    assert_is_product(shared, x, packed, multiply(shared, x, packed))


def test_int8_weights_with_a_scale_a_row_multiply_rows_of_one_scale(shared):
    """The rounded x differs by at most half a step of 1/127 of the largest value of the row."""
    rng = np.random.default_rng(6)
    codes = rng.integers(-127, 128, (70, 128)).astype(np.int8)
    scales = rng.uniform(0.5, 2, 70).astype(np.float32)
    packed, x = shared.pack_i8(codes, scales), inputs(5, 128)

    y = multiply(shared, x, packed)
    rounded = shared.multiplied(x, packed).astype(np.float64)
    bound = 8 * shared.magnitudes(x, packed)[:, None] * packed.error(slice(None))
    assert (abs(y - rounded @ packed.multiplied(slice(None)).T.astype(float)) <= bound).all()
    assert (abs(x - rounded) <= 0.51 * abs(x).max(axis=1, keepdims=True) / 127).all()
    exact = codes * scales[:, None].astype(float)
    assert (abs(packed.multiplied(slice(None)) - exact) <= 2.0**-14 * abs(exact)).all()
    with pytest.raises(LayoutError):
        shared.pack_i8(codes[:, :40], scales)


def test_weights_of_both_kinds_share_an_input(shared):
    rng = np.random.default_rng(6)
    codes = rng.integers(-127, 128, (40, 128)).astype(np.int8)
    weights = [shared.pack(tensor(33, 128)), shared.pack_i8(codes, np.ones(40, np.float32))]
    x = inputs(3, 128)
    outs = [np.full((3, w.n), np.nan, np.float32) for w in weights]

    shared.matmuls(x, weights, outs)

    for w, out in zip(weights, outs, strict=True):
        np.testing.assert_array_equal(out, multiply(shared, x, w))


def test_products_of_one_input_take_one_call_and_equal_single_ones(shared):
    weights = [
        shared.pack(tensor(n, 128, kind)) for n, kind in ((64, "q4_0"), (33, "q8_0"), (7, "f16"))
    ]
    x = inputs(4, 128)
    singles = [multiply(shared, x, w) for w in weights]
    calls = count_calls(shared)

    outs = [np.full((4, w.n), np.nan, np.float32) for w in weights]
    shared.matmuls(x, weights, outs)

    assert calls == ["execute"]
    for single, out in zip(singles, outs, strict=True):
        np.testing.assert_array_equal(single, out)


def test_products_of_one_input_quantise_it_once(shared):
    """One call saves at least an eighth of a packet per element, the minimum of quantising.

    The overhead of a call is smaller: less than 3000 packets, compared with 4096 saved packets.
    """
    k = 32768
    weights = [shared.pack(tensor(32, k, seed=i)) for i in range(2)]
    x = inputs(1, k)
    outs = [np.empty((1, 32), np.float32) for _ in weights]

    def packets(work):
        work()
        before = shared.packets()
        work()
        return shared.packets() - before

    together = packets(lambda: shared.matmuls(x, weights, outs))
    alone = packets(lambda: [multiply(shared, x, w) for w in weights])
    assert alone - together > k / 8


def count_calls(device):
    """Return a list to which the name of each later call is appended."""
    calls = []
    caller = device._sessions.opened[0].transport._owned.caller

    def counted(connection):
        def call(work, deadline, what):
            calls.append(what)
            return connection(work, deadline, what)

        return call

    caller.call, caller.run = counted(caller.call), counted(caller.run)
    return calls


def test_results_may_go_to_parts_of_rows(shared):
    """The runtime passes views of one wide buffer."""
    weights = [shared.pack(tensor(n, 64)) for n in (32, 40)]
    x = inputs(3, 64)
    wide = np.full((3, 80), 7, np.float32)

    shared.matmuls(x, weights, [wide[:, :32], wide[:, 32:72]])

    np.testing.assert_array_equal(wide[:, :32], multiply(shared, x, weights[0]))
    np.testing.assert_array_equal(wide[:, 32:72], multiply(shared, x, weights[1]))
    assert (wide[:, 72:] == 7).all()


def test_more_rows_than_the_scratch_memory_holds_are_done_in_parts(shared, monkeypatch):
    monkeypatch.setattr("npurt.hexagon.device.batch.RUN_ROWS", 16)
    packed = shared.pack(tensor(40, 64))
    x = inputs(37, 64)

    y = multiply(shared, x, packed)
    assert_is_product(shared, x, packed, y)
    assert multiply(shared, x[:0], packed).shape == (0, 40)


def test_a_row_does_not_depend_on_those_beside_it(shared):
    packed = shared.pack(tensor(64, 128, "q4_0"))
    x = inputs(9, 128)

    together = multiply(shared, x, packed)
    for i in range(9):
        np.testing.assert_array_equal(multiply(shared, x[i : i + 1], packed)[0], together[i])


def test_numbers_that_are_none_are_refused_and_the_device_goes_on(shared):
    packed = shared.pack(tensor(64, 128))
    x = inputs(2, 128)
    for bad in (np.nan, np.inf, -np.inf):
        broken = x.copy()
        broken[1, 77] = bad
        with pytest.raises(NumericsError):
            multiply(shared, broken, packed)
    assert_is_product(shared, x, packed, multiply(shared, x, packed))
    assert shared.events() == []


def test_packets_are_counted_by_the_simulator(shared):
    """More work takes more packets, and repeated work takes the same number."""
    small, large = shared.pack(tensor(32, 64)), shared.pack(tensor(512, 512))
    counts = []
    for packed in (small, large, large):
        x = inputs(1, packed.k)
        multiply(shared, x, packed)
        before = shared.packets()
        multiply(shared, x, packed)
        counts.append(shared.packets() - before)

    assert 0 < counts[0] < counts[1]
    assert counts[1] * packed.n > 0


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "word"),
    [
        (MatMul(1, 64, 8, "q9_9"), "no kernel"),
        (MatMul(1, 48, 8, "q8_0"), "multiple of 32"),
        (MatMul(1, 32, 0, "q8_0"), "no elements"),
        (MatMul(1, 0, 32, "q8_0"), "no elements"),
        (MatMul(1, 65568, 8, "q8_0"), "65536"),
        (MatMul(1, 32, (1 << 24) + 1, "q8_0"), "N is more"),
        (MatMul(1, 65536, 1 << 20, "q8_0"), "largest shared block"),
    ],
)
def test_a_refusal_has_its_reason(shared, op, word):
    assert word in shared.why_not(op)


@pytest.mark.parametrize("n", [1, 151936])
def test_an_output_matrix_is_not_refused_for_its_size(shared, n):
    assert shared.why_not(MatMul(1, 1536, n, "q6_k")) is None


@pytest.mark.parametrize("shape", [(32, 0), (0, 32), (0, 0)])
def test_a_weight_without_elements_is_refused(shared, shape):
    with pytest.raises(UnsupportedOp, match="no elements"):
        shared.pack(QTensor.quantize(np.zeros(shape, np.float32), "q8_0"))


def test_what_cannot_be_packed_is_an_error(shared):
    with pytest.raises(LayoutError, match="2-D"):
        shared.pack(tensor(32, 64).T)
    with pytest.raises(UnsupportedOp, match="multiple of 32") as caught:
        shared.pack(tensor(8, 48, "f16"))
    assert caught.value.remedy


# --- Lifetimes ----------------------------------------------------------------------------------


def test_two_devices_of_one_process_have_sessions_of_their_own(simulator):
    with contextlib.ExitStack() as stack:
        devices = [
            stack.enter_context(HexagonDevice(f"hexagon:{i}", connection())) for i in range(2)
        ]
        x = inputs(2, 64)
        for i, device in enumerate(devices):
            packed = device.pack(tensor(32, 64, seed=i))
            assert_is_product(device, x, packed, multiply(device, x, packed))
    named = contextlib.closing(HexagonDevice("hexagon:0/1", connection(session=1)))
    with named, pytest.raises(DeviceNotFound, match="in use"):
        HexagonDevice("hexagon:0/1", connection(session=1))


@pytest.mark.parametrize("worker", [False, True])
def test_a_fork_cannot_use_the_device_and_leaves_it_as_it_was(worker, simulator):
    with HexagonDevice("hexagon:test", connection(worker=worker)) as device:
        packed, x = device.pack(tensor(32, 64)), inputs(2, 64)
        wanted = multiply(device, x, packed)
        blocks = device._sessions.opened[0].scratch.blocks
        scratch = [block.array.copy() for block in blocks]

        def work():
            good = refused(lambda: multiply(device, 0 * x, packed))
            device.close()
            return good

        assert forked(work) == 1
        for block, before in zip(blocks, scratch, strict=True):
            np.testing.assert_array_equal(block.array, before)
        np.testing.assert_array_equal(multiply(device, x, packed), wanted)


# --- Device strings -----------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "arch"), [("hexagon:sim", 68), ("hexagon:sim-v73", 73)])
def test_the_simulator_is_opened_by_name(text, arch, simulator):
    with open_hexagon(text) as device:
        packed = device.pack(tensor(64, 128))
        x = inputs(2, 128)
        assert_is_product(device, x, packed, multiply(device, x, packed))
        assert device.caps.name == text
        assert device.caps.simulated
        assert f"v{arch}" in device.caps.detail


IN_THE_PLACE = f"""
import os, signal
import numpy as np
import npurt
from npurt.hexagon.fastrpc.lib import load
from npurt.quant.tensor import QTensor

with npurt.open_device("hexagon:0") as device:
    print(device.caps.simulated, device.caps.detail)
    packed = device.pack(QTensor.quantize(np.ones((32, 64), np.float32), "q8_0"))
    before, after = np.zeros((2, 1, 32), np.float32)
    x = np.ones((1, 64), np.float32)
    device.matmul(x, packed, before)
    transport = device._sessions.opened[0].transport
    if transport.name == "worker":
        os.kill(transport.process, signal.SIGKILL)
    else:
        os.kill(load([{lib.simulator()!r}]).c.npurt_sim_process(3), signal.SIGKILL)
    device.matmul(x, packed, after)
    print((before == after).all(), device.events())
"""


@pytest.mark.parametrize("worker", ["0", "1"])
@pytest.mark.parametrize("named", ["NPURT_FASTRPC_LIBRARY", "LD_LIBRARY_PATH"])
def test_the_simulator_in_the_place_of_the_library_says_so_and_is_opened_again(
    named, worker, tmp_path
):
    """The library has any name: a setting names it, or the linker finds it as the system's."""
    link = tmp_path / "libcdsprpc.so.1"
    link.symlink_to(lib.simulator())
    place = link if named == "NPURT_FASTRPC_LIBRARY" else tmp_path
    settings = {named: str(place), "NPURT_HEXAGON_WORKER": worker, "NPURT_CACHE": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_PLACE],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )

    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("True simulated Hexagon v68")
    assert second.startswith("True ")
    assert "opened again" in second


def test_a_report_says_that_a_dsp_is_simulated(simulator):
    path = tiny.path("llama3-256", "q8_0")
    with npurt.Llama(path, "hexagon:sim", n_ctx=64, progress=False) as llm:
        assert "(hexagon:sim: simulated Hexagon v68, " in llm.report().line()


def test_every_version_gives_the_same_bits(simulator):
    results = []
    for version in (68, 69, 73, 75, 79, 81):
        with open_hexagon(f"hexagon:sim-v{version}") as device:
            packed = device.pack(tensor(64, 128, "q4_1"))
            results.append(multiply(device, inputs(5, 128), packed))
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("text", ["hexagon", "hexagon:0"])
def test_a_machine_without_the_library_has_no_hexagon(text, monkeypatch, tmp_path):
    monkeypatch.setenv("NPURT_FASTRPC_LIBRARY", str(tmp_path / "absent.so"))
    with pytest.raises(DeviceNotFound, match=r"absent\.so") as caught:
        open_hexagon(text)
    assert "hexagon:sim" in caught.value.remedy


def test_a_machine_without_a_dsp_has_no_hexagon(simulator):
    tell("present=0")
    with pytest.raises(DeviceNotFound, match="0x72") as caught:
        open_hexagon("hexagon:sim")
    assert "npurt doctor" in caught.value.remedy


@pytest.mark.parametrize("worker", ["0", "1"])
@pytest.mark.parametrize(
    ("version", "word", "remedy"),
    [
        (None, "No such file", "apt-get install qemu-user"),
        ("echo 'qemu-hexagon version 7.2.15'", "version 7.2", "apt-get install qemu-user"),
        ("echo 'qemu-hexagon version 10.0.2'", "ended before it served", "log=1"),
    ],
)
def test_a_simulator_without_a_qemu_that_fits_names_qemu_and_a_remedy(
    version, word, remedy, worker, simulator, monkeypatch, tmp_path
):
    qemu = tmp_path / "qemu-hexagon"
    if version:
        qemu.write_text(f"#!/bin/sh\n{version}\n")
        qemu.chmod(0o755)
    monkeypatch.setenv("NPURT_QEMU_HEXAGON", str(qemu))
    monkeypatch.setenv("NPURT_HEXAGON_WORKER", worker)
    for _ in range(2):  # printed on stderr only once
        with pytest.raises(DeviceNotFound, match=word) as caught:
            open_hexagon("hexagon:sim")
        assert str(qemu) in caught.value.what
        assert remedy in caught.value.remedy


def test_what_the_simulator_said_of_another_start_explains_nothing(simulator, monkeypatch):
    monkeypatch.setenv("NPURT_QEMU_HEXAGON", "/no/qemu")
    with pytest.raises(DeviceNotFound, match="/no/qemu"):
        open_hexagon("hexagon:sim")
    monkeypatch.delenv("NPURT_QEMU_HEXAGON")
    tell("start=1:0x72")
    with pytest.raises(DeviceNotFound, match="0x72"):
        open_hexagon("hexagon:sim")


def test_settings_of_the_simulator_that_make_no_sense_are_told(simulator, monkeypatch):
    """The test uses a worker, whose simulator reads the settings again."""
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "crsh=1")
    monkeypatch.setenv("NPURT_HEXAGON_WORKER", "1")

    with pytest.raises(DeviceNotFound, match="unknown setting: crsh=1") as caught:
        open_hexagon("hexagon:sim-v73")
    assert "NPURT_SIM_FASTRPC" in caught.value.remedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NPURT_HEXAGON_TRANSPORT", "pigeon"),
        ("NPURT_HEXAGON_WORKER", "maybe"),
        ("NPURT_DEADLINE", "soon"),
        ("NPURT_DEADLINE", "0"),
        ("NPURT_DEADLINE", "-5"),
        ("NPURT_DEADLINE", "86401"),
        ("NPURT_DEADLINE", "99999999999999"),
    ],
)
def test_settings_that_make_no_sense_are_refused(name, value, simulator, monkeypatch):
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingError, match=value):
        open_hexagon("hexagon:sim")


def test_settings_choose_transport_and_worker(simulator, monkeypatch, tmp_path):
    monkeypatch.setenv("NPURT_HEXAGON_TRANSPORT", "dspqueue")
    monkeypatch.setenv("NPURT_HEXAGON_WORKER", "1")
    with open_hexagon("hexagon:sim") as device:
        assert device.caps.detail.endswith("dspqueue, worker process")
        packed = device.pack(tensor(64, 128))
        x = inputs(2, 128)
        assert_is_product(device, x, packed, multiply(device, x, packed))
        assert device.packets() > 0
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "queue_stuck=1")
    (tmp_path / "file").touch()
    monkeypatch.setenv("NPURT_CACHE", str(tmp_path / "file" / "below"))
    with open_hexagon("hexagon:sim") as device:
        assert device.caps.detail.endswith("invoke, worker process")
