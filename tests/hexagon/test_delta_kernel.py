"""Test the HVX kernel of the gated delta net: bit-exact integers, and their accuracy."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.hexagon_kernels import ARCHS as COUNTED
from bench.hexagon_kernels import delta_counts
from npurt.hexagon.layout import delta
from tests.cpu import cases, delta_cases, delta_oracle
from tests.cpu.delta_nets import (
    CONFIGURATIONS,
    RECORDED,
    UPSTREAM,
    configured,
    net_of,
    recorded,
    shapes,
)
from tests.hexagon import delta_model
from tests.hexagon.delta_kernel import Driver, packed, results
from tests.llm.reference import nmse
from tools.build import hexagon

COUNTS = Path(__file__).parents[1] / "data/hexagon/delta_packets.json"


@pytest.fixture(scope="module")
def drivers(tmp_path_factory):
    """Return a function that returns the driver of an architecture, started at the first call."""
    started = {}

    def driver(arch):
        if arch not in started:
            started[arch] = Driver(arch, tmp_path_factory.mktemp("delta"))
        return started[arch]

    yield driver
    for one in started.values():
        one.close()


def check(driver, net, **options):
    """Run *net*, check that results and states equal the model's to the bit; return the answer."""
    answer = driver.run(net, **options)
    out, states = delta_model.run(net, options.get("words", packed(net)))
    gates = net.decay.shape[3] > 1
    assert not answer.failed
    np.testing.assert_array_equal(answer.y.view(np.uint32), out.view(np.uint32))
    for words, state in zip(answer.words, states, strict=True):
        after = delta_model.state_of(words, net.v.shape[3], gates)
        np.testing.assert_array_equal(after.exponents, state.exponents)
        np.testing.assert_array_equal(after.gain, state.gain)
        np.testing.assert_array_equal(after.integers, state.integers)
    return answer


# --- to the bit ----------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", hexagon.ARCHS)
@pytest.mark.parametrize("kda", [False, True])
@pytest.mark.parametrize("width", [16, 64, 96, 128])
def test_every_build_equals_the_integers_of_the_model(drivers, arch, width, kda):
    check(drivers(arch), net_of({"heads": 2, "width": width, "tokens": 5, "kda": kda}, 3))


SHAPES = shapes(tokens=[1, 2, 16, 17])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shape=SHAPES, seed=st.integers(0, 2**32), arch=st.sampled_from(["v68", "v73"]))
def test_any_shape_in_any_two_calls(drivers, shape, seed, arch):
    """A head finds its q and k in either call; no byte beyond a buffer is written."""
    net = net_of(shape, seed)
    heads = shape["sequences"] * shape["heads"] * shape["repeat"]

    check(drivers(arch), net, split=seed % heads)


@pytest.mark.parametrize("arch", ["v68", "v73"])
@pytest.mark.parametrize("width", [32, 128])
def test_many_heads_and_tokens_are_as_one_by_one(drivers, arch, width):
    """17 heads and 35 tokens are both more than the kernel prepares at a time."""
    net = net_of({"heads": 17, "width": width, "tokens": 1})
    check(drivers(arch), net)
    net = net_of({"heads": 1, "width": width, "tokens": 35})

    whole = check(drivers(arch), net)
    first = drivers(arch).run(net.first(18))
    rest = drivers(arch).run(net.after(18), words=first.words)

    np.testing.assert_array_equal(np.concatenate([first.y, rest.y], axis=1), whole.y)
    np.testing.assert_array_equal(rest.words, whole.words)


def scaled(net, **factors):
    """Return *net* with fields multiplied."""
    fields = {name: (getattr(net, name) * np.float32(f)) for name, f in factors.items()}
    return replace(net, **fields)


EXTREMES = {
    "zero state": {"state": 0},
    "zero k": {"k": 0},
    "zero q": {"q": 0},
    "zero v": {"v": 0},
    "beta 0": {"beta": 0},
    "no decay": {"decay": 0},
    "all decays": {"decay": 1e4},
    "growth": {"decay": -1},
    "huge v": {"v": 1e37},
    "huge state": {"state": 1e30},
    "tiny v": {"v": 1e-37},
    "tiny state": {"state": 1e-38},
    "tiny k": {"k": 1e-20},
    "k that vanishes": {"k": 1e-38},
    "huge k": {"k": 1e15, "beta": 1e-30},
    "long q": {"q": 1e20},
    "subnormal": {"v": 1e-40, "state": 1e-41, "q": 1e-40},
    "minus": {"v": -0.0, "k": -1, "beta": -1},
    "all of all": {"v": 1e19, "q": 1e19, "state": 1e19, "beta": 1.9},
}


@pytest.mark.parametrize("name", EXTREMES)
@pytest.mark.parametrize("shape", [(128, False), (64, False), (64, True)], ids=str)
def test_extreme_values_give_what_the_model_gives(drivers, name, shape):
    width, kda = shape
    net = net_of({"heads": 2, "width": width, "tokens": 4, "kda": kda}, 5)

    check(drivers("v68"), scaled(net, **EXTREMES[name]))


@pytest.mark.parametrize("kda", [False, True])
def test_sums_that_rounding_takes_to_a_power_of_two_still_fit(drivers, kda):
    """Elements of 1 - 2^-13 round to 1, and the sum of 32 integers is 2^17."""
    net = net_of({"heads": 1, "width": 128, "tokens": 3, "kda": kda})
    net.q[:] = net.k[:] = 1 - 2.0**-13

    check(drivers("v68"), scaled(net, beta=0.01))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", ["q", "k", "v", "decay", "beta"])
@pytest.mark.parametrize("kda", [False, True])
def test_a_value_that_is_not_finite_is_reported(drivers, value, field, kda):
    net = net_of({"heads": 2, "width": 80, "tokens": 3, "kda": kda})
    assert not drivers("v68").run(net).failed

    array = getattr(net, field).copy()
    array[(0, 2, 1, -1)[: array.ndim]] = value

    assert drivers("v68").run(replace(net, **{field: array})).failed


# --- what they are worth -------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["v68", "v73"])
@pytest.mark.parametrize("values", CONFIGURATIONS, ids=str)
def test_upstreams_configurations_are_within_its_threshold(drivers, arch, values):
    net = configured(values)
    reference, last, *_ = delta_oracle.delta(net)

    out, state = results(net, drivers(arch).run(net))

    assert nmse(out, reference) <= UPSTREAM
    assert nmse(state, last) <= UPSTREAM


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_the_exact_numbers_come_out(drivers, path):
    data = np.load(path)
    net = recorded(data)

    out, state = results(net, drivers("v68").run(net))

    assert nmse(out, data["out_f64"]) <= UPSTREAM
    assert nmse(state, data["state_f64"][0]) <= UPSTREAM


@pytest.mark.parametrize("decay", [0, -1e-4, -5])
@pytest.mark.parametrize("beta", [1, 0.02])
def test_errors_do_not_grow_with_tokens(drivers, decay, beta):
    """After 2000 tokens, the last hundred results and the state are still within the threshold."""
    net = net_of({"heads": 1, "width": 64, "tokens": 2000})
    net.decay[:], net.beta[:] = decay, beta
    reference, last, *_ = delta_oracle.delta(net)

    out, state = results(net, drivers("v73").run(net))

    assert nmse(out[:, -100:], reference[:, -100:]) <= UPSTREAM
    assert nmse(state, last) <= UPSTREAM


@pytest.mark.parametrize("kda", [False, True])
def test_a_decay_of_everything_leaves_the_token_alone(drivers, kda):
    """A decay of e^-1000 removes a state of 1e30, so S = beta v k^T."""
    net = net_of({"heads": 2, "width": 32, "tokens": 1, "kda": kda})
    net.decay[:] = -1000

    out, state = results(net, drivers("v68").run(scaled(net, state=1e30)))

    wanted = (net.beta[..., None] * net.v)[0, 0, :, :, None] * net.k[0, 0, :, None, :]
    assert nmse(state[0], wanted) <= UPSTREAM
    assert np.isfinite(out).all()


def test_zeros_stay_zeros(drivers):
    """A state of zeros and a v of zeros give zeros, not the smallest numbers."""
    net = scaled(net_of({"heads": 1, "width": 64, "tokens": 3}), state=0, v=0)

    out, state = results(net, drivers("v68").run(net))

    assert not out.any()
    assert not state.any()


# --- forms ---------------------------------------------------------------------------------------


@given(SHAPES, st.integers(0, 2**32))
def test_a_state_comes_back_to_the_thirtieth_bit(shape, seed):
    net = net_of(shape, seed)
    net = replace(net, state=net.state * np.float32(10) ** (seed % 60 - 30))
    state = np.empty_like(net.state)

    delta.unpack_state(packed(net), delta.shape_of(net), state)

    greatest = abs(net.state).max(axis=3, keepdims=True)
    assert (abs(state - net.state) <= greatest * 2.0**-30 + abs(net.state) * 2.0**-23).all()


def test_a_state_is_read_where_the_kernel_has_it():
    """Each element is where the model expects it."""
    net = delta_cases.delta(cases.rng_of(0), heads=1, width=80, tokens=1)
    net.state[:] = 0
    for v, k in ((0, 0), (33, 1), (79, 64), (5, 32)):
        net.state[0, 0, v, k] = 1 + v + 100 * k
    found = delta_model.state_of(packed(net)[0], 80, False)
    values = found.integers * np.ldexp(0.5, found.exponents)

    np.testing.assert_array_equal(values[:80, :80].T, net.state[0, 0])


@pytest.mark.parametrize("arch", COUNTED)
def test_packets_are_as_counted(drivers, arch):
    """Counts are exact; after an intended change, run python bench/hexagon_kernels.py --update."""
    assert delta_counts(drivers(arch)) == json.loads(COUNTS.read_text())[arch]
