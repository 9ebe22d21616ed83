"""Test host caches: data of both sides arrive, and only written bytes are synchronised.

With `coherent=0`, the simulated DSP has separate memory, and only DMA_BUF_IOCTL_SYNC copies between
it and the host's memory.
"""

import ctypes
import gc
import mmap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import npurt
from npurt.errors import DeviceFull, DeviceLost
from npurt.hexagon.device import batch, delta_state, scratch
from npurt.hexagon.device.device import HexagonDevice
from npurt.hexagon.device.scratch import MAX_BLOCKS, MAX_BYTES, Scratch, block_bytes
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.fastrpc.rpcmem import Block
from tests.cpu.delta_nets import net_of
from tests.hexagon.delta_nets import OPTIONS, own, run
from tests.hexagon.products import inputs, multiply, tensor
from tests.hexagon.simulator import CONNECTIONS, Product, connection, opened, tell
from tests.llm import tiny

PAGE = mmap.PAGESIZE


@pytest.fixture
def incoherent(simulator, monkeypatch):
    """Simulate a host whose caches must be maintained, in this process and in workers."""
    monkeypatch.setenv("NPURT_SIM_FASTRPC", "coherent=0")
    tell("coherent=0")


# --- What is written arrives --------------------------------------------------------------------


@pytest.mark.parametrize("name", CONNECTIONS)
def test_activations_results_and_weights_arrive(name, incoherent):
    with opened(**CONNECTIONS[name]) as transport:
        first, second = Product(transport), Product(transport, seed=2)
        assert first.run()
        assert second.run()
        exact = [out.copy() for out in second.outs]
        for rows in (1, 3, 2):
            outs = [np.full((rows, out.shape[1]), np.nan, np.float32) for out in exact]
            second.batch.run(second.x[:rows], outs)
            for out, y in zip(outs, exact, strict=True):
                np.testing.assert_array_equal(out, y[:rows])


@pytest.mark.parametrize("name", CONNECTIONS)
@pytest.mark.parametrize("forgotten", ["written", "read"])
def test_a_block_that_is_not_synchronised_shows(forgotten, name, incoherent, monkeypatch):
    """This shows that the tests of this file can fail."""
    with opened(**CONNECTIONS[name]) as transport:
        product = Product(transport)
        assert product.run()
        send = product.batch._send

        def careless(written, read):
            send(None if forgotten == "written" else written, None if forgotten == "read" else read)

        monkeypatch.setattr(product.batch, "_send", careless)
        product.x *= -3
        product._exact = [-3 * exact for exact in product._exact]
        if forgotten == "read":
            with pytest.raises(DeviceLost, match="results did not"):
                product.run()
        else:
            assert not product.run()


def test_weights_that_take_each_others_place_arrive(incoherent):
    with HexagonDevice("hexagon:test", connection()) as device:
        places = set()
        for seed in range(3):
            packed = device.pack(tensor(64, 128, seed=seed))
            places.add(packed.part.offset)
            x = inputs(2, 128, seed=seed)
            y = multiply(device, x, packed)
            np.testing.assert_allclose(y, x @ packed.tensor.dequantize().T, atol=0.5)
            del packed
            gc.collect()
        assert len(places) == 1


@pytest.mark.parametrize("worker", [False, True])
def test_states_of_delta_nets_arrive(worker, incoherent):
    """States are equal to the bit after writes, advances, copies, reads and rollbacks."""
    net = own(net_of({"heads": 2, "width": 32, "tokens": delta_state.MAX_ROWS + 8}))
    with npurt.open_device("hexagon:sim") as coherent:
        wanted = run(coherent, net)
        begun = run(coherent, net.first(4))
    with HexagonDevice("hexagon:test", connection(worker=worker)) as device:
        state = device.delta_state(net)
        for token in range(net.v.shape[1]):
            state.advance(net.after(token).first(1))
            if token == 3:
                kept = state.checkpoint()
        np.testing.assert_array_equal(net.out, wanted.out)
        np.testing.assert_array_equal(state.read(), wanted.state)
        np.testing.assert_array_equal(state.to_float32(kept), begun.state)
        state.restore_checkpoint(kept)
        state.advance(net.after(4))
        np.testing.assert_array_equal(net.out, wanted.out)
        np.testing.assert_array_equal(state.read(), wanted.state)


@pytest.mark.parametrize("transport", ["invoke", "dspqueue"])
@pytest.mark.parametrize("model", [("llama3-256", "q4_k_m"), ("qwen35", "q8_0")])
def test_the_text_of_a_model_is_the_same(model, transport, simulator, monkeypatch):
    monkeypatch.setenv("NPURT_HEXAGON_TRANSPORT", transport)
    texts = []
    for settings in ("coherent=1", "coherent=0"):
        monkeypatch.setenv("NPURT_SIM_FASTRPC", settings)  # for the process that tests dspqueue
        tell(settings)
        with npurt.Llama(tiny.path(*model), "hexagon:sim", verify="always", **OPTIONS) as llm:
            stream = llm.generate(tiny.ids(model[0], 20), max_tokens=12, temperature=0, stream=True)
            texts.append("".join(stream))
            report = llm.report()
        assert "hexagon:sim" in {row.actual for row in report.rows if row.macs}
        assert "0 fallbacks" in report.line()
        assert ", 0 wrong" in report.line()
    assert texts[0] == texts[1]


# --- No more than was written ---------------------------------------------------------------------


def synchronised(work):
    """Return the number of DMA_BUF_IOCTL_SYNC calls during *work*, and their bytes."""
    library = ctypes.CDLL(lib.simulator())
    library.npurt_sim_syncs.restype = ctypes.c_uint64
    before, after = ctypes.c_uint64(), ctypes.c_uint64()
    calls = library.npurt_sim_syncs(ctypes.byref(before))
    work()
    calls = library.npurt_sim_syncs(ctypes.byref(after)) - calls
    return calls, after.value - before.value


def pages(nbytes):
    return -(-nbytes // PAGE) * PAGE


LAYER = [(576, (576, 192, 192)), (576, (576,)), (576, (1536, 1536)), (1536, (576,))]  # SmolLM2-135M


@pytest.fixture
def layer(simulator):
    """Return a function that multiplies rows by the matrices of a layer."""
    with HexagonDevice("hexagon:test", connection()) as device:
        weights = [(k, [device.pack(tensor(n, k, "q4_0")) for n in widths]) for k, widths in LAYER]
        device._sessions.opened[0].sync()

        def run_layer(rows):
            for k, group in weights:
                outs = [np.empty((rows, w.n), np.float32) for w in group]
                device.matmuls(inputs(rows, k), group, outs)

        yield run_layer


@pytest.mark.parametrize(
    ("rows", "maximum"), [(1, 512), (2, 512), (9, 512), (100, 512), (150, 100)]
)
def test_bytes_synchronised_are_those_read_and_written(rows, maximum, layer, monkeypatch):
    """A call synchronises x once and its results once: at most 1.1 times their pages.

    With a hundred rows or more, the limit is also 1.1 times the bytes; x of one row is half a page.
    More rows than *maximum* are divided into two calls of equal size.
    """
    monkeypatch.setattr(batch, "RUN_ROWS", maximum)
    calls, nbytes = synchronised(lambda: layer(rows))

    parts = [rows] if rows <= maximum else [rows // 2, rows // 2]
    sizes = [4 * m * n for k, widths in LAYER for m in parts for n in (k, sum(widths))]
    assert calls == len(sizes)
    assert sum(sizes) <= nbytes <= 1.1 * sum(map(pages, sizes))
    if rows >= 100:
        assert nbytes <= 1.1 * sum(sizes)


def moved(path, tokens):
    """Return the bytes of x and of y of each call of a step of *tokens* tokens.

    A layer takes four calls of one input each; the last call computes the logits of the last token.
    """
    shapes = {name: info.shape for name, info in npurt.GGUF(path).tensors.items()}
    groups = [
        [f"blk.{layer}.{name}.weight" for name in names.split()]
        for layer in range(2)
        for names in ("attn_q attn_k attn_v", "attn_output", "ffn_gate ffn_up", "ffn_down")
    ]
    sizes = [
        (4 * tokens * shapes[group[0]][1], 4 * tokens * sum(shapes[name][0] for name in group))
        for group in groups
    ]
    vocabulary, width = shapes["token_embd.weight"]  # with the output matrix
    return [*sizes, (4 * width, 4 * vocabulary)]


@pytest.mark.parametrize("tokens", [1, 40])
def test_bytes_synchronised_for_a_step_of_a_model(tokens, simulator):
    path = tiny.path("llama3-256", "q4_k_m")
    with npurt.Llama(path, "hexagon:sim", **OPTIONS) as llm:
        llm.eval_last(tiny.ids("llama3-256", tokens))
        ids = tiny.ids("llama3-256", 2 * tokens)[tokens:]
        calls, nbytes = synchronised(lambda: llm.eval_last(ids))

    sizes = [size for call in moved(path, tokens) for size in call]
    assert calls == len(sizes) == 18
    assert sum(sizes) <= nbytes <= 1.1 * sum(map(pages, sizes))
    if tokens == 40:
        assert nbytes <= 1.1 * sum(sizes)


def test_weights_are_synchronised_once_when_all_have_been_uploaded(simulator):
    with HexagonDevice("hexagon:test", connection()) as device:
        weights = []

        def upload():
            weights.extend(device.pack(tensor(64, 256, seed=seed)) for seed in range(9))

        assert synchronised(upload) == (0, 0)
        (allocator,) = device._sessions.opened[0]._allocators
        x = inputs(1, 256)
        first = synchronised(lambda: multiply(device, x, weights[0]))
        again = synchronised(lambda: multiply(device, x, weights[0]))
        other = synchronised(lambda: multiply(device, x, weights[8]))
        assert first == (again[0] + 1, again[1] + allocator.block.nbytes)
        assert again == other == (2, 2 * PAGE)


def test_bytes_synchronised_for_a_delta_net(simulator):
    """A token synchronises its row and result; a write and every 32nd token, also the state."""
    net = own(net_of({"heads": 2, "width": 64, "tokens": 80}))
    with HexagonDevice("hexagon:test", connection()) as device:
        state = device.delta_state(net)
        counts = [
            synchronised(lambda token=token: state.advance(net.after(token).first(1)))
            for token in range(80)
        ]
        nbytes = state._shape.state_bytes
    row, result = (pages(size) for size in state._shape.row_bytes)
    assert counts[1] == (2, row + result)
    copies = [token for token, count in enumerate(counts) if count != counts[1]]
    assert copies == [0, 32, 65]
    for token in copies:
        calls, synced = counts[token]
        assert calls == 3
        assert nbytes <= synced - row - result <= 1.1 * pages(nbytes)


# --- The blocks that all batches share ------------------------------------------------------------


@given(st.integers(1, 1 << 30))
def test_a_block_is_less_than_a_16th_larger_than_its_pages(nbytes):
    size = block_bytes(nbytes)

    assert size % PAGE == 0
    assert pages(nbytes) <= size < pages(nbytes) * 17 / 16 + 1
    assert block_bytes(size) == size


def test_there_are_16_sizes_for_each_power_of_two():
    assert len({block_bytes(n * PAGE) for n in range(1, 8193)}) == 31 + 8 * 16 + 1


class Memory:
    """A transport with limited memory and without a DSP."""

    def __init__(self, nbytes=1 << 40):
        self.left = nbytes
        self.fds = iter(range(1, 1 << 30))

    def allocate(self, nbytes):
        if nbytes > self.left:
            raise DeviceFull("none left", remedy="", call="", code=0)
        self.left -= nbytes
        return Block(np.broadcast_to(np.uint8(0), nbytes), next(self.fds))

    def free(self, block):
        self.left += block.nbytes


class User:
    """An owner of a pair of blocks, until `forget` is called."""

    blocks = ()

    def forget_scratch(self):
        self.blocks = ()


@given(st.lists(st.tuples(st.integers(1, 15 << 20), st.integers(1, 15 << 20)), max_size=60))
def test_blocks_are_shared_and_no_more_than_there_may_be(sizes):
    memory = Memory()
    shared = Scratch(memory)
    users = [User() for _ in sizes]
    for user, (x_bytes, y_bytes) in zip(users, sizes, strict=True):
        x, y = user.blocks = shared.pair(x_bytes, y_bytes, user)
        assert (x.nbytes, y.nbytes) == (block_bytes(x_bytes), block_bytes(y_bytes))
        assert x is not y
        there = {block.fd for block in shared.blocks}
        assert sum(block.nbytes for block in shared.blocks) <= MAX_BYTES
        assert len(there) == len(shared.blocks) <= MAX_BLOCKS
        assert {block.fd for other in users for block in other.blocks} <= there
        assert shared.pair(x_bytes, y_bytes, user) == (x, y)
    assert memory.left == (1 << 40) - sum(block.nbytes for block in shared.blocks)


@given(st.lists(st.tuples(st.integers(1, 15 << 20), st.integers(1, 15 << 20)), max_size=20))
def test_what_one_batch_needs_is_kept_for_it(sizes):
    """All other memory is allocated, to the last byte."""
    memory = Memory(scratch.RESERVED_BYTES)
    shared = Scratch(memory)
    assert memory.left == 0
    for x_bytes, y_bytes in [(scratch.BATCH_BYTES - 1, 1), *sizes, (1, scratch.BATCH_BYTES - 1)]:
        x, y = shared.pair(x_bytes, y_bytes, User())
        assert (x.nbytes, y.nbytes) == (block_bytes(x_bytes), block_bytes(y_bytes))


def test_without_memory_for_one_batch_there_is_no_scratch():
    with pytest.raises(DeviceFull):
        Scratch(Memory(scratch.RESERVED_BYTES - 1))
    shared = Scratch(Memory(scratch.RESERVED_BYTES))
    with pytest.raises(DeviceFull):
        shared.pair(scratch.RESERVED_BYTES, 1, User())


def test_products_of_many_sizes_go_on_when_their_memory_is_taken(simulator, monkeypatch):
    """There are at most four blocks, so each number of rows takes the blocks of another number."""
    monkeypatch.setattr(scratch, "MAX_BLOCKS", 4)
    tell("coherent=0")
    with HexagonDevice("hexagon:test", connection()) as device:
        packed = [device.pack(tensor(n, 1024, seed=n)) for n in (48, 2048)]
        x = inputs(40, 1024)
        whole = [multiply(device, x, w) for w in packed]
        for rows in (1, 3, 7, 20, 40, 1):
            for w, y in zip(packed, whole, strict=True):
                np.testing.assert_array_equal(multiply(device, x[:rows], w), y[:rows])
        assert len(device._sessions.opened[0].scratch.blocks) <= 4
