"""Tests of batches on the shipped skel in the simulator: results, refusals and damaged input."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npurt.hexagon.fastrpc.control import session_pool
from npurt.hexagon.fastrpc.handle import Handle, Invocation
from npurt.hexagon.layout.delta import DeltaShape, pack_state
from npurt.hexagon.session import messages, skel
from npurt.hexagon.session.dspqueue import Queue
from npurt.hexagon.session.messages import OpFlag, OpKind, Status
from tests.hexagon.dsp import (
    CANARY,
    NBYTES,
    Dsp,
    assert_product,
    call_of,
    check_of,
    code_of,
    rows,
    simulated,
    weights,
)
from tools import build

ARCHS = [int(name.removeprefix("v")) for name in build.ARCHS]

# --- products ------------------------------------------------------------------------------------

SHAPES = [(1, 32, 1), (1, 64, 32), (2, 96, 33), (4, 128, 129), (5, 160, 300), (37, 352, 515)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "m{}k{}n{}".format(*s))
@pytest.mark.parametrize("fmt", ["q4_0", "q4_1", "q8_0", "f16"])
def test_a_product_is_right_and_nothing_beside_it_is_written(dsp, shape, fmt):
    m, k, n = shape
    x, tensor = rows(m, m, k), weights(n, n, k, fmt)
    op = dsp.product(x, tensor)
    before = dsp.block.array.copy()

    (y,) = dsp.run(op)

    assert_product(y, x, tensor)
    dsp.matrix(op["y"], y.shape)[...] = dsp_matrix_canary(y.shape)
    assert np.array_equal(dsp.block.array, before)


def dsp_matrix_canary(shape):
    return np.full((shape[0], 4 * shape[1]), CANARY, np.uint8).view(np.float32)


def test_threads_and_vtcm_change_no_bit():
    """Tiles that fit a thread's VTCM once, often and not at all; more threads than tiles."""
    x, small, large = rows(0, 70, 512), weights(1, 417, 512), weights(2, 70, 8192, "f16")
    long_x = rows(3, 65, 8192)
    results = []
    for settings in ("hvx=1 vtcm=0", "hvx=1 vtcm=128K", "hvx=3 vtcm=2M", "hvx=4 vtcm=0", "hvx=8"):
        with simulated(settings) as session:
            dsp = Dsp(session)
            ops = [dsp.product(x, small), dsp.product(x[:1], small), dsp.product(long_x, large)]
            results.append(dsp.run(*ops))

    first, *others = results
    for y, values, tensor in zip(first, (x, x[:1], long_x), (small, small, large), strict=True):
        assert_product(y, values, tensor)
    for other in others:
        for y, want in zip(other, first, strict=True):
            assert np.array_equal(y, want)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_version_multiplies_alike(arch, dsp):
    x, tensor = rows(4, 6, 160), weights(5, 77, 160, "q4_k" if 160 % 256 == 0 else "q4_1")

    with simulated(f"arch=v{arch}") as session:
        other = Dsp(session)
        (y,) = other.run(other.product(x, tensor))

    assert np.array_equal(y, dsp.run(dsp.product(x, tensor))[0])


def test_ops_of_the_same_x_share_its_quantised_rows(dsp):
    """The second op must not read x: its y has overwritten that memory."""
    x = rows(6, 3, 64)
    first, second = weights(7, 96, 64), weights(8, 32, 64, "q4_0")
    a = dsp.product(x, first)
    b = dsp.product(x, second, x_ref=a["x"], flags=OpFlag.SAME_X | OpFlag.NEW_W)
    a["y"] = a["x"] | {"nbytes": a["y"]["nbytes"], "stride": 4 * 96}
    dsp.used += a["y"]["nbytes"]

    ya, yb = dsp.run(a, b)

    assert_product(ya, x, first)
    assert_product(yb, x, second)


def test_an_op_may_read_what_an_earlier_one_wrote(dsp):
    x, first, second = rows(9, 2, 64), weights(10, 96, 64), weights(11, 40, 96)
    a = dsp.product(x, first)
    a["y"] = dsp.allocate(2 * 384) | {"stride": 384}
    b = dsp.product(np.zeros((2, 96), np.float32), second, x_ref=a["y"])

    ya, yb = dsp.run(a, b)

    assert_product(ya, x, first)
    assert_product(yb, ya, second)


def test_what_the_host_writes_is_seen_and_weights_when_they_are_said_to_be_new(dsp):
    """Simulated caches keep stale data, so a missing invalidate shows in the third product."""
    x, other_x = rows(12, 2, 64), rows(13, 2, 64)
    tensor, other = weights(14, 32, 64), weights(15, 32, 64)
    op = dsp.product(x, tensor)
    assert_product(dsp.run(op)[0], x, tensor)

    dsp.matrix(op["x"], x.shape)[...] = other_x
    assert_product(dsp.run(op | {"flags": 0})[0], other_x, tensor)
    np.copyto(dsp.bytes(op["w"]), dsp.bytes(dsp.weight(other)))
    assert_product(dsp.run(op | {"flags": 0})[0], other_x, tensor)
    assert_product(dsp.run(op)[0], other_x, other)


def test_the_reply_has_the_last_words_of_the_results(dsp):
    x = rows(18, 3, 64)
    ops = [dsp.product(x, weights(19, n, 64)) for n in (1, 33)]
    net = delta_op(dsp, heads=3, k_heads=3, width=48)  # whose lanes of v are padded to 64

    reply = dsp.send(dsp.request(*ops, net).data)

    assert reply["done"] == 3
    last = net["y"]["stride"] * (net["m"] * net["group"] - 1) + 4 * (2 * 64 + 48 - 1)
    words = [dsp.y(op)[-1, -1:].view(np.uint32) for op in ops]
    words.append(dsp.bytes(net["y"])[last : last + 4].view(np.uint32))
    assert reply["check"] == check_of(np.concatenate(words))


def test_packets_of_a_batch_are_the_same_every_time():
    """The packet count is exact on one thread and on several, so that figures can be compared."""
    x, tensor = rows(16, 5, 256), weights(17, 300, 256)
    for hvx in (1, 4):
        with simulated(f"hvx={hvx}") as session:
            dsp = Dsp(session)
            op = dsp.product(x, tensor)
            dsp.run(op)
            counts = set()
            for _ in range(5):
                before = session.packets()
                dsp.send(dsp.request(op | {"flags": 0}).data)
                counts.add(session.packets() - before)

        assert len(counts) == 1, counts


def test_batches_from_several_threads_do_not_mix(dsp):
    """The methods of one handle are called at the same time, as FastRPC allows."""
    cases = []
    for seed in range(4):
        x, tensor = rows(20 + seed, 3, 96), weights(30 + seed, 64, 96)
        op = dsp.product(x, tensor)
        cases.append((x, tensor, op, dsp.request(op), messages.reply()))
    calls = [Invocation(call_of("execute", c[3].data, c[4])) for c in cases]
    handle = dsp.session._owned.handle
    threads = [
        threading.Thread(target=lambda call=call: [handle.invoke(call) for _ in range(20)])
        for call in calls
    ]

    dsp.session.sync_for_device(dsp.block)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dsp.session.sync_for_cpu(dsp.block)

    for x, tensor, op, _, reply in cases:
        assert (reply.view(messages.REPLY)["done"], reply.view(messages.REPLY)["status"]) == (1, 0)
        assert_product(dsp.y(op), x, tensor)


def test_batches_come_by_a_queue_too():
    x, tensor = rows(40, 5, 128), weights(41, 99, 128)
    with simulated() as session:
        dsp = Dsp(session)
        queue = Queue(session)
        op = dsp.product(x, tensor)
        for sequence in (5, 6):
            request, reply = dsp.request(op), messages.reply()
            request.head["sequence"] = sequence
            queue.prepare(request.data, reply)()

            assert messages.check(request, reply) == 0  # cycles, which the emulator does not count
            assert_product(dsp.y(op), x, tensor)
        assert code_of(Queue, session) == 0x8000041A  # a second handle


def test_a_message_that_is_no_batch_is_answered_too():
    with simulated() as session:
        reply = messages.reply()
        Queue(session).prepare(np.zeros(3, np.uint8), reply)()

    assert reply.view(messages.REPLY)["status"] == Status.BATCH


# --- what is refused -----------------------------------------------------------------------------

BROKEN = [
    (Status.OP, {"kind": 0}),
    (Status.OP, {"kind": 3}),
    (Status.OP, {"flags": 4}),
    (Status.OP, {"flags": 2**31}),
    (Status.OP, {"scale": 1}),
    (Status.OP, {"format": 4}),
    (Status.OP, {"format": 2**32 - 1}),
    (Status.OP, {"group": 0}),
    (Status.OP, {"group": 64}),
    (Status.OP, {"format": 24}),  # i8, whose group is 0
    (Status.SHAPE, {"m": 0}),
    (Status.SHAPE, {"m": 2**16 + 1}),
    (Status.SHAPE, {"m": 2**32 - 1}),
    (Status.SHAPE, {"n": 0}),
    (Status.SHAPE, {"n": 2**24 + 1}),
    (Status.SHAPE, {"n": 2**32 - 1}),
    (Status.SHAPE, {"k": 0}),
    (Status.SHAPE, {"k": 48}),
    (Status.SHAPE, {"k": 65568}),
    (Status.SHAPE, {"k": 2**32 - 32}),
    (Status.SHAPE, {"x.stride": 128}),
    (Status.SHAPE, {"x.stride": 260}),
    (Status.SHAPE, {"y.stride": 124}),
    (Status.SHAPE, {"y.stride": 134}),
    (Status.SHAPE, {"w.stride": 128}),
    (Status.MAP, {"m": 3}),  # x and y have two rows
    (Status.MAP, {"k": 96, "x.stride": 384}),
    (Status.MAP, {"n": 33, "y.stride": 132}),
    (Status.MAP, {"x.stride": 2**32 - 128}),
    (Status.MAP, {"y.stride": 2**32 - 4}),
    *((Status.MAP, {f"{ref}.{field}": value})
      for ref in "xwy"
      for field, value in [
          ("fd", -1), ("fd", 999), ("offset", 64), ("offset", 2**32 - 128), ("nbytes", 0),
          ("nbytes", 127), ("offset", NBYTES - 128), ("offset", NBYTES),
      ]),
]  # fmt: skip


@pytest.mark.parametrize(("status", "broken"), BROKEN, ids=str)
def test_an_op_that_makes_no_sense_ends_the_batch_there(dsp, status, broken):
    """Ops before the invalid op are executed, and later ops are not."""
    x, tensor = rows(50, 2, 64), weights(51, 32, 64)
    good, bad, after = (dsp.product(x, tensor) for _ in range(3))
    for name, value in broken.items():
        ref, _, field = name.partition(".")
        bad[ref] = bad[ref] | {field: value} if field else value

    reply = dsp.send(dsp.request(good, bad, after).data)

    assert (reply["status"], reply["done"], reply["sequence"]) == (status, 1, 77)
    assert_product(dsp.y(good), x, tensor)
    assert (dsp.bytes(after["y"]) == CANARY).all()


@pytest.mark.parametrize("change", ["first", "m", "k", "x", "stride", "group"])
def test_the_same_x_is_only_what_the_op_before_had(dsp, change):
    x, tensor = rows(52, 2, 64), weights(53, 32, 64)
    a = dsp.product(x, tensor, x_ref=dsp.put(rows(52, 4, 64)))
    b = dsp.product(x, tensor, x_ref=a["x"], flags=OpFlag.SAME_X)
    other = {
        "first": {},
        "m": {"m": 1},
        "k": {"k": 32},
        "x": {"x": dsp.put(x)},
        "stride": {"x": a["x"] | {"stride": 384}},
        "group": {"group": 128},
    }[change]

    reply = dsp.send(dsp.request(*([b] if change == "first" else [a, b | other])).data)

    assert (reply["status"], reply["done"]) == (Status.OP, int(change != "first"))


def delta_op(dsp, *, tokens=2, sequences=2, heads=4, k_heads=2, width=64, flags=0):
    """Return the op of a delta net of ones, and the number of floats in a row of x and of y."""
    shape = DeltaShape(sequences, k_heads, heads, width, bool(flags & OpFlag.GATES), False, 1.0)
    x = dsp.put(np.ones((sequences * tokens, sum(shape.parts)), np.float32))
    state = dsp.allocate(shape.state_bytes)
    words = dsp.bytes(state).view(np.int32).reshape(-1, shape.words)
    pack_state(np.zeros((sequences, heads, width, width), np.float32), shape, words)
    stride = 4 * heads * shape.along_v
    return {
        "kind": OpKind.DELTA,
        "flags": flags,
        "m": tokens,
        "k": width,
        "n": heads,
        "format": k_heads,
        "group": sequences,
        "scale": 0x3F800000,
        "x": x,
        "w": state,
        "y": dsp.allocate(stride * sequences * tokens) | {"stride": stride},
    }


BROKEN_DELTAS = [
    (Status.OP, {"flags": int(OpFlag.SAME_X)}),
    (Status.OP, {"flags": int(OpFlag.NEW_W)}),
    (Status.OP, {"flags": 16}),
    (Status.SHAPE, {"m": 0}),
    (Status.SHAPE, {"m": 2**31, "group": 2**31}),
    (Status.SHAPE, {"m": 2**16}),
    (Status.SHAPE, {"group": 0}),
    (Status.SHAPE, {"k": 0}),
    (Status.SHAPE, {"k": 40}),
    (Status.SHAPE, {"k": 144}),
    (Status.SHAPE, {"k": 2**32 - 16}),
    (Status.SHAPE, {"n": 0}),
    (Status.SHAPE, {"n": 3}),
    (Status.SHAPE, {"n": 4098}),
    (Status.SHAPE, {"format": 0}),
    (Status.SHAPE, {"format": 8}),
    (Status.SHAPE, {"x.stride": 128}),
    (Status.SHAPE, {"x.stride": 2**12 + 4}),
    (Status.SHAPE, {"y.stride": 896}),
    (Status.SHAPE, {"y.stride": 1028}),
    (Status.SHAPE, {"w.stride": 128}),
    (Status.SHAPE, {"flags": int(OpFlag.GATES)}),  # rows are longer
    (Status.MAP, {"m": 3}),
    (Status.MAP, {"group": 3}),
    *((Status.MAP, {f"{ref}.{field}": value})
      for ref in "xwy"
      for field, value in [("fd", 999), ("offset", 64), ("offset", 2**32 - 128), ("nbytes", 128)]),
]  # fmt: skip


@pytest.mark.parametrize(("status", "change"), BROKEN_DELTAS, ids=str)
def test_a_delta_net_that_cannot_be_is_refused_and_nothing_of_it_is_done(dsp, status, change):
    op = delta_op(dsp)
    dsp.request(op)
    good, broken = dsp.request(op), dsp.request(op)
    for name, value in change.items():
        ref, _, field = name.partition(".")
        if field:
            broken.ops[0][ref][field] = value
        else:
            broken.ops[0][name] = value

    reply = dsp.send(broken.data)

    assert (reply["status"], reply["done"]) == (status, 0)
    assert (dsp.bytes(op["y"]) == CANARY).all()
    assert dsp.send(good.data)["status"] == 0


def test_a_delta_net_may_stand_between_products(dsp):
    """A product after the delta net must not reuse its quantised x."""
    x, tensor = rows(70, 3, 64), weights(71, 40, 64)
    product, net = dsp.product(x, tensor), delta_op(dsp)
    reply = dsp.send(dsp.request(product, net, product, net).data)
    assert (reply["status"], reply["done"]) == (0, 4)
    assert_product(dsp.y(product), x, tensor)

    same = product | {"flags": OpFlag.SAME_X}
    reply = dsp.send(dsp.request(product, net, same).data)

    assert (reply["status"], reply["done"]) == (Status.OP, 2)


def test_a_delta_net_that_is_not_finite_ends_the_batch(dsp):
    net, x, tensor = delta_op(dsp), rows(72, 2, 32), weights(73, 8, 32)
    after = dsp.product(x, tensor)
    dsp.matrix(net["x"], (4, 5))[2, 3] = np.nan

    reply = dsp.send(dsp.request(net, after).data)

    assert (reply["status"], reply["done"]) == (Status.VALUE, 0)
    assert (dsp.bytes(after["y"]) == CANARY).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0), (4, 95)])
def test_activations_that_are_not_finite_end_the_batch_there(dsp, value, where):
    x, tensor = rows(54, 5, 96), weights(55, 64, 96)
    wrong = x.copy()
    wrong[where] = value
    good, bad, after = dsp.product(x, tensor), dsp.product(wrong, tensor), dsp.product(x, tensor)

    reply = dsp.send(dsp.request(good, bad, after).data)

    assert (reply["status"], reply["done"]) == (Status.VALUE, 1)
    assert_product(dsp.y(good), x, tensor)
    assert (dsp.bytes(after["y"]) == CANARY).all()
    dsp.run(good)


def test_a_batch_that_is_none_is_refused_whole(dsp):
    request = dsp.request(dsp.product(rows(56, 1, 32), weights(57, 32, 32)))
    good = request.data.tobytes()
    other_version = good[:4] + b"\x01\0\0\0" + good[8:]
    too_many = good[:12] + b"\x02\0\0\0" + good[16:]
    huge = good[:12] + b"\xff\xff\xff\xff" + good[16:]
    many = messages.BatchMessage(257)

    for damaged in (good[:-1], good + b"\0", good[:15], other_version, too_many, huge, many.data):
        reply = dsp.send(damaged)
        assert (reply["magic"], reply["status"]) == (messages.REPLY_MAGIC, Status.BATCH)
        assert reply["done"] == 0
    assert dsp.send(good[1:])["sequence"] == 0
    assert dsp.send(b"")["status"] == Status.BATCH
    assert dsp.send(messages.BatchMessage(0).data)["status"] == 0


def test_a_batch_may_have_256_ops(dsp):
    x, tensor = rows(58, 1, 32), weights(59, 3, 32)
    op = dsp.product(x, tensor)

    for y in dsp.run(*[op] * 256):
        assert_product(y, x, tensor)


@given(data=st.data())
def test_a_damaged_batch_gets_an_answer_and_harms_nothing(dsp, data):
    """Words are overwritten or bytes cut off; ops that still run write only where an op says."""
    dsp.used = 0
    ops = [dsp.product(rows(60, 2, 64), weights(61, 40, 64)) for _ in range(3)]
    request = dsp.request(*ops).data
    words = request.view("<u4")
    for _ in range(data.draw(st.integers(1, 3))):
        word = data.draw(st.integers(0, len(words) - 1))
        old = int(words[word])
        words[word] = data.draw(
            st.sampled_from([0, 1, old + 128, max(0, old - 128), old * 2, 2**31, 2**32 - 128])
            | st.integers(0, 2**32 - 1)
        ) % (1 << 32)
    cut = data.draw(st.sampled_from([None, None, None, -1, 17]))
    before = dsp.block.array.copy()

    reply = dsp.send(request[:cut])

    assert reply["magic"] == messages.REPLY_MAGIC
    assert reply["done"] <= 3
    assert (reply["status"] == 0) == (reply["done"] == 3) or len(request[:cut]) != 16 + 3 * 80
    for op in request[16:].view(messages.OP)[: reply["done"]]:
        start, length = int(op["y"]["offset"]), int(op["y"]["nbytes"])
        before[start : start + length] = dsp.block.array[start : start + length]
    assert np.array_equal(before, dsp.block.array)
    assert dsp.session.call("echo", 1) == (1 ^ 0x9E3779B97F4A7C15,)


def test_too_little_memory_is_a_status():
    """Nearly all of the address space is mapped, so the quantised rows cannot be allocated."""
    with simulated("space=3500M rpcmem=8G") as session:
        dsp = Dsp(session)
        tensor = weights(62, 32, 8192)
        op = dsp.product(rows(63, 1, 8192), tensor)
        large = session.allocate(1700 << 20)
        x = {"fd": large.fd, "offset": 0, "nbytes": large.nbytes, "stride": 32768}
        y = dsp.allocate(50000 * 128) | {"stride": 128}
        for _ in range(16):
            session.allocate(64 << 20)

        reply = dsp.send(dsp.request(op, op | {"x": x, "y": y, "m": 50000}).data)

        assert (reply["status"], reply["done"]) == (Status.MEMORY, 1)
        assert_product(dsp.y(op), rows(63, 1, 8192), tensor)
        dsp.run(op)


def test_without_threads_the_rest_works_and_batches_are_refused():
    """Other handles of the process use all threads that the DSP has."""
    with simulated("hvx=8") as session:
        uri = session_pool(session.library).uri(session.slot, skel.module(skel.choose(68)))
        handles = [Handle(session.library, uri) for _ in range(20)]
        try:
            for handle in handles:
                handle.open()
            assert threads_of(handles[0]) == 8
            assert threads_of(handles[-1]) == 0
            request, reply = messages.BatchMessage(0), messages.reply()
            handles[-1].invoke(Invocation(call_of("execute", request.data, reply)))
        finally:
            for handle in handles:
                handle.close()

    assert reply.view(messages.REPLY)["status"] == Status.THREADS


def threads_of(handle):
    call = call_of("info")
    handle.invoke(Invocation(call))
    return call.unpack()[0]["threads"]
