"""Gated delta nets for the tests of every kernel on every device."""

import numpy as np
from hypothesis import strategies as st

from npurt.cpu.kernels.abi import limits
from npurt.device.delta import DeltaNet
from tests.conftest import PROJECT
from tests.cpu import cases, delta_cases

UPSTREAM = 1e-7  # the NMSE that llama.cpp's test-backend-ops allows
RECORDED = sorted((PROJECT / "tests/data/gdn").glob("*.npz"))

# Rows of GATED_DELTA_NET in llama.cpp's test-backend-ops that its Hexagon backend passed, from
# github.com/wyanzhao/llama.cpp pull request 5.  The columns are: heads, width, tokens, sequences,
# repeat, permuted, decay for each element of k.
CONFIGURATIONS = [
    (32, 128, 1, 1, 1, 0, 0),
    (32, 16, 1, 1, 1, 0, 0),
    (32, 16, 1, 1, 1, 1, 1),
    (32, 16, 1, 1, 1, 0, 1),
    (16, 64, 1, 2, 1, 0, 0),
    (4, 64, 4, 1, 1, 0, 0),
    (4, 64, 4, 2, 1, 0, 0),
    (8, 32, 4, 2, 2, 0, 0),
    (4, 64, 4, 2, 1, 1, 0),
    (4, 64, 4, 1, 1, 1, 0),
    (4, 64, 1, 1, 1, 0, 1),
    (4, 64, 1, 2, 1, 0, 1),
    (4, 16, 1, 2, 1, 0, 1),
    (4, 32, 4, 1, 1, 0, 1),
    (4, 64, 4, 2, 1, 0, 1),
    (8, 32, 4, 2, 2, 0, 1),
    (4, 64, 4, 2, 1, 1, 1),
    (4, 16, 4, 2, 1, 1, 1),
]
NAMES = ("heads", "width", "tokens", "sequences", "repeat", "permute", "kda")


def shapes(*, tokens, heads=3, sequences=2, repeat=3):
    """Return a strategy for the arguments of `net_of`: sizes up to the limits."""
    return st.fixed_dictionaries(
        {
            "heads": st.integers(1, heads),
            "width": st.sampled_from(range(16, limits().delta + 1, 16)),
            "tokens": st.sampled_from(tokens),
            "sequences": st.integers(1, sequences),
            "repeat": st.integers(1, repeat),
            "kda": st.booleans(),
            "permute": st.booleans(),
            "grouped": st.booleans(),
        }
    )


def net_of(shape, *seed):
    """Return a net of random inputs; *shape* holds the arguments of `delta_cases.delta`."""
    return delta_cases.delta(cases.rng_of(*seed, *shape.items()), **shape)


def configured(values):
    """Return the net of a row of `CONFIGURATIONS`."""
    return net_of(dict(zip(NAMES, values, strict=True)))


def recorded(data):
    """Return the net whose inputs are in *data*, one of the files `RECORDED`."""
    return DeltaNet(
        **{name: data[name] for name in "qkv"},
        decay=data["g"],
        beta=data["beta"][..., 0],
        out=np.zeros_like(data["v"]),
        state=data["state"],
        scale=data["v"].shape[-1] ** -0.5,
        grouped=False,
    )
