"""Delta nets for tests of the device, and their results by the model of its kernels."""

from dataclasses import replace

import numpy as np

from npurt.hexagon.device import delta_state
from npurt.hexagon.layout import delta
from tests.cpu.delta_nets import shapes
from tests.hexagon import delta_model
from tests.hexagon.delta_kernel import packed
from tests.hexagon.simulator import kill

OPTIONS = {"n_ctx": 160, "n_threads": 2, "progress": False}
SHAPES = shapes(tokens=[1, 3, 5, 20], heads=5, sequences=3, repeat=2)
MAX_REPLAYED = delta_state.MAX_ROWS  # the most tokens that can be repeated


def own(net):
    """Return *net* with a copy of its state and a result filled with NaN."""
    return replace(net, state=net.state.copy(), out=np.full_like(net.out, np.nan))


def run(device, net):
    net = own(net)
    assert device.why_not_delta(net) is None
    device.delta_net(net)
    return net


def modelled(net):
    """Return `out` and the state that the model of the kernels computes."""
    out, states = delta_model.run(net, packed(net))
    shape = delta.shape_of(net)
    read = delta.results(out, shape)
    values = [s.integers * (s.gain[:, None] / 2**31) * np.ldexp(1.0, s.exponents) for s in states]
    w = shape.width
    return read, np.stack([v[:w, :w].T for v in values]).reshape(net.state.shape)


def one_by_one(state, net):
    """Advance *state* by the tokens of *net*, one token per call."""
    for token in range(net.v.shape[1]):
        state.advance(net.after(token).first(1))


def kill_dsp_of(device):
    kill(device._sessions.opened[0].transport.slot.effective)


def after(device, net, tokens):
    """Return a state advanced by the first *tokens* of *net*, one per call."""
    state = device.delta_state(net)
    one_by_one(state, net.first(tokens))
    return state
