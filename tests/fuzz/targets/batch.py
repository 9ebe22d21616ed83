"""Batches for the DSP: any fields, run by the skel that ships and by dsp/reference on the host.

Neither may write memory that the batch does not allow.  Both return the same code, and the same
bits if no op reads and writes the same part of memory.
"""

import atexit
import contextlib
import functools
import shutil
import tempfile
from pathlib import Path

import numpy as np
from cffi import FFI

from npurt.hexagon.layout import images
from npurt.hexagon.session import messages
from npurt.hexagon.session.messages import OpKind, Status
from npurt.quant.tensor import QTensor
from tests.fuzz import frame, sizes
from tests.hexagon.dsp import Dsp, simulated
from tools import build
from tools.build.hexagon import DSP

NATIVE = True
RUNS = 400
SECONDS = 60

BLOCK = 1 << 20  # bytes of the only block, which has parts for x, weights and y
X, W, Y = range(1 << 18), range(1 << 18, 3 << 18), range(3 << 18, BLOCK)
WEIGHTS = (("q4_0", 33, 64), ("q4_1", 64, 96), ("q8_0", 40, 128), ("f16", 7, 32), ("q6_k", 20, 256),
           ("mxfp4", 32, 256), ("iq4_nl", 100, 160), ("q4_0", 300, 32))  # fmt: skip
FIELDS = ("kind", "flags", "m", "k", "n", "format", "group", "scale")
PARTS = ("fd", "offset", "nbytes", "stride")
NUMBERS = (0.0, 1e-45, 1e-38, 1.0, 65504.0, 1e30, 3.4e38)


def mutate(rng):
    ops = []
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        ops.append(delta(rng) if rng.random() < 0.25 else product(rng))
    if len(ops) > 1 and rng.random() < 0.3:
        ops[-1]["x"], ops[-1]["flags"] = ops[-2]["x"], ops[-1]["flags"] | 1
    head, nbytes = {}, 0
    if rng.random() < 0.7:
        op = rng.choice(ops)
        for _ in range(rng.choice((1, 1, 2, 4))):
            spoil(rng, op)
    elif rng.random() < 0.3:
        head = {
            rng.choice(("magic", "protocol", "count")): sizes.anything(rng, len(ops)) % (1 << 32)
        }
        nbytes = rng.choice((0, 0, -1, 1, -80, 80))
    return {
        "ops": ops,
        "head": head,
        "nbytes": nbytes,  # too many or too few
        "seed": rng.randrange(1 << 30),
        "size": rng.randrange(len(NUMBERS)),
        "odd": rng.choice(("nan", "inf", None, None, None, None, None)),
    }


def product(rng):
    """Return the fields of a valid product."""
    which, m = rng.randrange(len(WEIGHTS)), rng.choice((1, 1, 2, 4, 5, 33))
    _, n, k = WEIGHTS[which]
    stride = -(-4 * k // 128) * 128 + rng.choice((0, 0, 128))
    y_stride = 4 * (n + rng.choice((0, 1, 32)))
    place = 128 * rng.randrange((len(Y) - m * y_stride) // 128)
    return {
        "kind": OpKind.MATMUL, "flags": rng.choice((0, 2, 2)), "m": m, "k": k, "n": n,
        "format": ["of", which], "group": 32, "scale": 0,
        "x": [0, 128 * rng.randrange((len(X) - m * stride) // 128), m * stride, stride],
        "w": [0, ["of", which], ["bytes of", which], 0],
        "y": [0, Y.start + place, m * y_stride, y_stride],
    }  # fmt: skip


def delta(rng):
    """Return the fields of a valid delta net."""
    width, k_heads = rng.choice((16, 32, 64, 128)), rng.choice((1, 2))
    heads, tokens, sequences = (
        k_heads * rng.choice((1, 2)),
        rng.choice((1, 2, 5)),
        rng.choice((1, 2)),
    )
    along_k, along_v = -(-width // 64) * 256, -(-width // 32) * 128
    x, y = 2 * k_heads * along_k + heads * along_v + 256, heads * along_v
    b, p = -(-width // 32), -(-width // 64)
    state = (p * 32 * b * 2 + 3 * p + 3 * b) * 128 * heads * sequences
    rows = tokens * sequences
    return {
        "kind": OpKind.DELTA, "flags": rng.choice((0, 4)), "m": tokens, "k": width, "n": heads,
        "format": k_heads, "group": sequences, "scale": 0x3E000000,
        "x": [0, 128 * rng.randrange((len(X) - rows * x) // 128), rows * x, x],
        "w": [0, Y.start, state, 0],
        "y": [0, Y.stop - rows * y, rows * y, y],
    }  # fmt: skip


def spoil(rng, op):
    """Set a field to any value or to a limit."""
    if rng.random() < 0.5:
        name = rng.choice(FIELDS)
        now = op[name] if isinstance(op[name], int) else 2
        op[name] = sizes.anything(rng, now) % (1 << 32)
        return
    part, i = rng.choice("xwy"), rng.randrange(4)
    op[part] = list(op[part])
    part = op[part]
    left = BLOCK - (part[1] if isinstance(part[1], int) else 0)
    near = rng.choice((BLOCK, left, part[2] if isinstance(part[2], int) else 128))
    part[i] = rng.choice((sizes.anything(rng, near), sizes.near(rng, near) // 128 * 128)) % (
        1 << 32
    )
    if i == 0:
        part[i] %= 4


SOURCES = {"batch.c": DSP / "batch.c"}  # of the check of batches; a planted defect changes it


@functools.cache
def native():
    """Return (ffi, library) of batch.c."""
    ffi = FFI()
    ffi.cdef("""
        void fuzz_reset(void);
        char *fuzz_block(int32_t fd, uint32_t nbytes);
        void fuzz_execute(const uint8_t *bytes, uint32_t nbytes, uint32_t answer[3]);
    """)
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    sources = [frame.HERE / "batch.c", SOURCES["batch.c"], DSP / "maps.c",
               *sorted((DSP / "reference").glob("*.c"))]  # fmt: skip
    made = build.build_library(
        build.host(), Path(folder) / "libbatch.so", sources=sources,
        includes=[DSP, frame.ROOT / "idl"], defines=["__HVX_ARCH__=68"],
    )  # fmt: skip
    return ffi, ffi.dlopen(str(made))


@functools.cache
def uploaded():
    """Return the images of the weights and their offsets in the block."""
    found, at = [], W.start
    for i, (fmt, n, k) in enumerate(WEIGHTS):
        values = np.random.default_rng(i).standard_normal((n, k), np.float32)
        tensor = QTensor.quantize(values, fmt)
        kind = images.format_of(tensor)
        image = np.zeros(images.image_bytes(kind, n, k), np.uint8)
        images.pack(tensor, image)
        found.append((at, image, kind.number))
        at += -(-len(image) // 128) * 128
    assert at <= W.stop
    return found


stack = contextlib.ExitStack()
atexit.register(stack.close)


@functools.cache
def dsp():
    """Return a session on the simulated DSP."""
    return Dsp(stack.enter_context(simulated()), BLOCK)


def bytes_of(value, fd):
    """Return the bytes of the batch, whose block 0 is *fd*."""
    request = messages.BatchMessage(len(value["ops"]))
    request.head["sequence"] = 77
    for name, number in value["head"].items():
        request.head[name] = number
    for op, out in zip(value["ops"], request.ops, strict=True):
        for name in FIELDS:
            number = op[name]
            out[name] = uploaded()[number[1]][2] if isinstance(number, list) else number
        for part in "xwy":
            block, offset, nbytes, stride = op[part]
            if isinstance(offset, list):
                offset = uploaded()[offset[1]][0]
            if isinstance(nbytes, list):
                nbytes = len(uploaded()[nbytes[1]][1])
            out[part] = (fd if block == 0 else 1000 + block, offset, nbytes, stride)
    data = request.data.tobytes()
    more = value["nbytes"]
    return data[: len(data) + more] if more < 0 else data + bytes(more)


def contents(value):
    """Return the bytes of the block before the batch."""
    rng = np.random.default_rng(value["seed"])
    block = rng.integers(0, 256, BLOCK, np.uint8)
    with np.errstate(over="ignore"):
        x = rng.standard_normal(len(X) // 4).astype(np.float32) * np.float32(NUMBERS[value["size"]])
    x[~np.isfinite(x)] = 3.4e38
    if value["odd"]:
        x[rng.integers(0, len(x), 50)] = float(value["odd"])
    block[X.start : X.stop] = x.view(np.uint8)
    for at, image, _ in uploaded():
        block[at : at + len(image)] = image
    return block


def run(value):
    block = contents(value)
    ffi, lib = native()
    lib.fuzz_reset()
    mine = np.frombuffer(ffi.buffer(lib.fuzz_block(5, BLOCK), BLOCK), np.uint8)
    mine[:] = block
    answer = ffi.new("uint32_t[3]")
    data = bytes_of(value, 5)
    lib.fuzz_execute(data, len(data), answer)

    there = dsp()
    there.block.array[:BLOCK] = block
    reply = there.send(bytes_of(value, there.block.fd))
    assert reply["magic"] == messages.REPLY_MAGIC
    have = [reply[name] for name in ("sequence", "status", "done")]
    if apart(value):
        assert have == list(answer), f"the skel says {have}, the reference {list(answer)}"
        same = np.array_equal(mine, there.block.array[:BLOCK]) or reply["status"] == Status.VALUE
        assert same, "the skel and the reference differ"
    return "done" if reply["status"] == 0 else Status(reply["status"]).name


def apart(value):
    """Return whether all ops multiply known weights, from one part of the block to another."""
    return all(is_apart(op) for op in value["ops"])


def is_apart(op):
    sound = op["kind"] == OpKind.MATMUL and isinstance(op["format"], list)
    sound = sound and all(isinstance(part, list) for part in op["w"][1:3])
    if not sound or op["w"][1][1] != op["format"][1] or op["w"][2][1] != op["format"][1]:
        return False
    _, n, k = WEIGHTS[op["format"][1]]
    x, y = op["x"][1], op["y"][1]
    m = min(op["m"], 1 << 16)
    x_end, y_end = x + m * op["x"][3], y + m * op["y"][3]
    return op["k"] == k and op["n"] <= n and x_end <= X.stop and y >= Y.start and y_end <= Y.stop


def one_row_of_y():
    """Make the check of a batch assume that y has one row."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    right, wrong = "y_bytes = batch_extent(op->m,", "y_bytes = batch_extent(1,"
    text = SOURCES["batch.c"].read_text()
    assert right in text
    changed = SOURCES["batch.c"] = folder / "batch.c"
    changed.write_text(text.replace(right, wrong))


PLANTED = {"one row of y": one_row_of_y}
