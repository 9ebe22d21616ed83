"""Test the placement of weights on a DSP: blocks, caches, sessions, and shortage of memory."""

import gc

import numpy as np
import pytest

from npurt.errors import DeviceFull
from npurt.hexagon.connect import probe
from npurt.hexagon.device import scratch, session_memory
from npurt.hexagon.device.device import HexagonDevice
from tests.hexagon.products import assert_is_product, inputs, multiply, tensor
from tests.hexagon.simulator import connection, tell


@pytest.fixture
def device(simulator):
    with HexagonDevice("hexagon:test", connection()) as opened:
        yield opened
    gc.collect()


def test_memory_of_a_weight_is_used_again_when_it_goes(device, monkeypatch):
    monkeypatch.setattr(session_memory, "MIN_BYTES", 1 << 16)
    weight = tensor(64, 256)
    for _ in range(12):
        packed = device.pack(weight)
        assert packed.nbytes > 1 << 14
        del packed
        gc.collect()
    assert [allocator.block.nbytes for allocator in device._sessions.opened[0]._allocators] == [
        1 << 16
    ]


def test_what_the_host_writes_gets_past_the_caches_of_the_dsp(simulator):
    """The simulated DSP reads shared memory through a cache that evicts nothing by itself.

    Weights replace each other, and activations and results change from product to product.
    """
    tell("shadow=1")
    with HexagonDevice("hexagon:test", connection()) as device:
        places = set()
        for seed in range(3):
            packed = device.pack(tensor(64, 128, seed=seed))
            places.add(packed.part.offset)
            for m in (1, 3, 1):
                x = inputs(m, 128, seed=10 * seed + m)
                assert_is_product(device, x, packed, multiply(device, x, packed))
            del packed
            gc.collect()
        assert len(places) == 1


def test_blocks_grow_with_the_weights(device, monkeypatch):
    monkeypatch.setattr(session_memory, "MIN_BYTES", 1 << 16)
    monkeypatch.setattr(session_memory, "MAX_BYTES", 1 << 18)
    kept = [device.pack(tensor(64, 256, seed=i)) for i in range(40)]
    sizes = [allocator.block.nbytes for allocator in device._sessions.opened[0]._allocators]

    assert sizes == sorted(sizes)
    assert (min(sizes), max(sizes)) == (1 << 16, 1 << 18)
    assert sum(sizes) < 3 * sum(packed.nbytes for packed in kept)
    large = device.pack(tensor(1024, 512))
    assert large.part.block.nbytes >= large.nbytes > 1 << 18


def test_a_model_that_does_not_fit_one_session_is_spread_over_several(device, monkeypatch):
    """Three products of one input on two sessions equal those on one session."""
    monkeypatch.setattr(session_memory, "MIN_BYTES", 1 << 17)
    monkeypatch.setattr(session_memory, "MAX_BYTES", 1 << 17)
    monkeypatch.setattr(session_memory, "PROVEN_BYTES", 0)
    monkeypatch.setattr(probe, "capacity", lambda connection: scratch.RESERVED_BYTES + (1 << 17))
    weights, x = [], inputs(2, 256)

    def fill():
        for seed in range(9):
            weights.append(device.pack(tensor(256, 256, seed=seed)))

    with pytest.raises(DeviceFull, match="no memory") as caught:
        fill()
    assert caught.value.remedy
    assert [device._sessions.opened.index(w.memory) for w in weights] == list(range(len(weights)))
    assert (
        len(weights) >= 3
    )  # of the four sessions, of which other devices of this process may have some
    outs = [np.full((2, 256), np.nan, np.float32) for _ in weights]
    device.matmuls(x, weights, outs)
    for w, out in zip(weights, outs, strict=True):
        assert_is_product(device, x, w, out)


@pytest.mark.parametrize("worker", [False, True])
def test_one_session_that_was_asked_for_stays_the_only_one(worker, simulator, monkeypatch):
    """A worker could open such a session again, in another process."""
    monkeypatch.setattr(session_memory, "PROVEN_BYTES", 0)
    monkeypatch.setattr(probe, "capacity", lambda connection: 0)
    with HexagonDevice("hexagon:test", connection(session=2, worker=worker)) as device:
        with pytest.raises(DeviceFull):
            device.pack(tensor(32, 64))
        assert len(device._sessions.opened) == 1
        if not worker:
            assert device._sessions.opened[0].transport.slot.session == 2


@pytest.mark.parametrize("fault", ["no_memory=1+", "bad_memory=1+", "map=1+"])
def test_no_memory_for_weights_is_said_so_and_the_device_goes_on(device, fault, monkeypatch):
    monkeypatch.setattr(session_memory, "MIN_BYTES", 1 << 14)
    kept, large = device.pack(tensor(32, 64)), tensor(256, 256)
    tell(fault)
    with pytest.raises(DeviceFull):
        device.pack(large)
    tell("reset")
    x = inputs(1, 64)
    assert_is_product(device, x, kept, multiply(device, x, kept))
    assert device.pack(large).nbytes > 256 * 256


def test_too_many_blocks_are_not_mapped(device, monkeypatch):
    monkeypatch.setattr(session_memory, "MIN_BYTES", 4096)
    monkeypatch.setattr(session_memory, "MAX_BYTES", 4096)
    transport = device._sessions.opened[0].transport
    monkeypatch.setattr(transport, "info", transport.info._replace(max_maps=4))
    weights = [device.pack(tensor(32, 96, seed=i)) for i in range(3)]

    assert [device._sessions.opened.index(w.memory) for w in weights] == [0, 0, 1]
