"""Tests of the CPU's delta nets with integer states: their bits equal the Hexagon kernel's."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.cpu.device import CpuDevice
from npurt.device.delta import state_values
from npurt.errors import NumericsError
from tests.cpu.delta_nets import CONFIGURATIONS, RECORDED, configured, net_of, recorded
from tests.hexagon.delta_nets import SHAPES, modelled, own


@pytest.fixture(scope="module")
def cpu():
    with CpuDevice(1) as device:
        yield device


def check(cpu, net):
    """Run *net*, and compare results and state with the model of the Hexagon's kernel."""
    net = own(net)
    out, values = modelled(net)
    state = cpu.integer_delta_state(net)
    state.advance(net)
    np.testing.assert_array_equal(net.out, out)
    np.testing.assert_array_equal(state.read(), values.astype(np.float32))


@given(SHAPES, st.integers(0, 2**32))
def test_bits_are_those_of_the_model(cpu, shape, seed):
    check(cpu, net_of(shape, seed))


@pytest.mark.parametrize("values", CONFIGURATIONS, ids=str)
def test_the_configurations_of_llama_cpp(cpu, values):
    net = configured(values)
    check(cpu, net if net.v[0, 0].size < 1000 else net.first(1))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_recorded_nets(cpu, path):
    with np.load(path) as data:
        check(cpu, recorded(data).first(3))


@given(SHAPES, st.integers(0, 2**32), st.integers(-30, 30), st.integers(-30, 30))
def test_numbers_of_any_size(cpu, shape, seed, up, down):
    """Elements of k, q, v and the state far from 1, and large decays, give the model's bits."""
    net = own(net_of(shape, seed))
    for name, power in {"v": up, "state": down, "k": down, "q": up}.items():
        getattr(net, name)[...] *= np.float32(2.0**power)
    net.decay[...] *= np.float32(abs(up) + 1)
    with np.errstate(all="ignore"):
        check(cpu, net)


@given(SHAPES, st.integers(0, 2**32), st.data())
def test_any_split_and_any_restore_gives_the_same_bits(cpu, shape, seed, data):
    net, again = own(net_of(shape, seed)), own(net_of(shape, seed))
    state = cpu.integer_delta_state(net)
    state.advance(net)
    split = data.draw(st.integers(0, net.v.shape[1]))

    first = cpu.integer_delta_state(again)
    if split:
        first.advance(again.first(split))
    second = cpu.integer_delta_state(replace(again, state=np.zeros_like(again.state)))
    second.restore(first.exact())
    if split < again.v.shape[1]:
        second.advance(again.after(split))

    np.testing.assert_array_equal(again.out, net.out)
    np.testing.assert_array_equal(second.exact(), state.exact())


def test_a_state_is_float32_until_it_advances(cpu):
    net = own(net_of({"heads": 2, "width": 32, "tokens": 1}))
    state = cpu.integer_delta_state(net)
    np.testing.assert_array_equal(state.read(), net.state)
    rounded = state_values(state.exact())
    assert abs(rounded - net.state).max() <= 2.0**-30 * abs(net.state).max()


@pytest.mark.parametrize("name", ["q", "k", "v", "decay", "beta"])
def test_a_nan_is_an_error_and_leaves_the_state(cpu, name):
    net = own(net_of({"heads": 2, "width": 32, "tokens": 2}))
    state = cpu.integer_delta_state(net)
    state.advance(net)
    before = state.exact()
    getattr(net, name)[0, 1, 0] = np.nan

    with pytest.raises(NumericsError, match="NaN"):
        state.advance(net)

    np.testing.assert_array_equal(state.exact(), before)
