"""Sessions on the shipped skel in the simulator, and helpers that build requests to it."""

import contextlib

import numpy as np

from npurt.errors import DriverError
from npurt.hexagon.device.session_memory import aligned
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.idl.interface import interface
from npurt.hexagon.layout import images
from npurt.hexagon.session import messages
from npurt.hexagon.session.messages import OpFlag
from npurt.hexagon.session.session import Session
from npurt.quant.tensor import QTensor
from tests.hexagon.simulator import end_process
from tests.limits import HANG_SECONDS

CANARY = 0xC5
NBYTES = 4 << 20  # bytes of the block that most tests share


class Dsp:
    """A session with one block of shared memory, filled from the front."""

    def __init__(self, session, nbytes=16 << 20):
        self.session = session
        self.block = session.allocate(nbytes)
        self.used = 0

    def allocate(self, nbytes):
        """Return a dict that names *nbytes* bytes of the block, filled with canaries."""
        offset, self.used = self.used, self.used + aligned(nbytes) + 128
        assert self.used <= self.block.nbytes
        self.block.array[offset : self.used] = CANARY
        return {"fd": self.block.fd, "offset": offset, "nbytes": nbytes, "stride": 0}

    def put(self, x):
        """Copy float32 rows in; their stride is a multiple of 128 bytes."""
        stride = aligned(4 * x.shape[1])
        ref = self.allocate(stride * len(x)) | {"stride": stride}
        self.matrix(ref, x.shape)[...] = x
        return ref

    def weight(self, tensor):
        """Copy a tensor's image in."""
        fmt = images.format_of(tensor)
        ref = self.allocate(images.image_bytes(fmt, *tensor.shape))
        images.pack(tensor, self.bytes(ref))
        return ref

    def bytes(self, ref):
        return self.block.array[ref["offset"] : ref["offset"] + ref["nbytes"]]

    def matrix(self, ref, shape):
        """View rows of float32."""
        rows = self.bytes(ref)[: ref["stride"] * shape[0]].reshape(shape[0], ref["stride"])
        return rows[:, : 4 * shape[1]].view(np.float32)

    def product(self, x, tensor, w=None, *, flags=OpFlag.NEW_W, x_ref=None):
        """Return an op that multiplies: a dict of its fields, and `shape` of y."""
        n, k = tensor.shape
        m = len(x)
        stride = 4 * n + 4  # bytes; one float more than a row of y
        return {
            "flags": flags,
            "m": m,
            "k": k,
            "n": n,
            "format": images.format_of(tensor).number,
            "group": 32,
            "x": x_ref or self.put(x),
            "w": w or self.weight(tensor),
            "y": self.allocate(stride * m) | {"stride": stride},
        }

    def request(self, *ops):
        """Return the batch of these ops."""
        request = messages.BatchMessage(len(ops))
        request.head["sequence"] = 77
        for i, op in enumerate(ops):
            for name, value in op.items():
                if isinstance(value, dict):
                    request.ops[i][name] = tuple(value[field] for field in messages.REF.names)
                else:
                    request.ops[i][name] = value
        return request

    def send(self, data):
        """Execute the bytes of a batch; return the fields of the reply as a dict."""
        reply = messages.reply()
        send = self.session.prepare(np.frombuffer(bytes(data), np.uint8), reply)
        send(self.block, self.block)
        read = reply.view(messages.REPLY)[0]
        return {name: int(read[name]) for name in messages.REPLY.names}

    def run(self, *ops):
        """Execute ops that must succeed; return each y."""
        reply = self.send(self.request(*ops).data)
        assert (reply["magic"], reply["sequence"]) == (messages.REPLY_MAGIC, 77)
        assert (reply["status"], reply["done"]) == (0, len(ops))
        return [self.y(op) for op in ops]

    def y(self, op):
        return self.matrix(op["y"], (op["m"], op["n"])).copy()


@contextlib.contextmanager
def simulated(settings=""):
    """Open a session on a simulated DSP with these settings."""
    library = lib.load([lib.simulator()])
    library.check("npurt_sim_control", f"reset {settings}".encode())
    try:
        try:
            session = Session.open(library, deadline=HANG_SECONDS)
        except BaseException:
            end_process()  # the process would refuse later sessions too
            raise
        with contextlib.closing(session):
            yield session
    finally:
        library.check("npurt_sim_control", b"reset")


def code_of(call, *arguments):
    """Return the code with which a call fails, or 0 if the call succeeds."""
    try:
        call(*arguments)
    except DriverError as error:
        return error.code & 0xFFFF_FFFF
    return 0


def check_of(words):
    """Return the check value of *words*, as npurt_msg.h defines it."""
    check = 0
    for word in words:
        rotated = f"{check ^ int(word):032b}"
        check = int(rotated[13:] + rotated[:13], 2) * 0x9E3779B1 % 2**32
    return check


def call_of(name, *arguments):
    return interface().method(name).pack(*(a.data for a in arguments))


def weights(seed, n, k, fmt="q8_0"):
    values = np.random.default_rng(seed).standard_normal((n, k), np.float32)
    return QTensor.quantize(values, fmt)


def rows(seed, m, k):
    return np.random.default_rng(1000 + seed).standard_normal((m, k), np.float32)


def assert_product(y, x, tensor):
    """Check that y is x times the tensor, within the error of rounding x to 8 bits in blocks of 32.

    A code is off by half a step, and its scale, one of 15 bits, by less than as much again; the
    weights' scales have 13 bits or more.
    """
    w = tensor.dequantize().astype(np.float64)
    x = x.astype(np.float64)
    blocks = x.reshape(len(x), -1, 32)
    step = np.repeat(np.abs(blocks).max(-1) / 127, 32, axis=-1)
    bound = step @ np.abs(w).T + 2.0**-12 * (np.abs(x) @ np.abs(w).T)
    assert (np.abs(y - x @ w.T) <= bound).all()
