"""Settings of the Hexagon simulator for tests, and transports to it."""

import contextlib
import gc
import os
import signal

import numpy as np

from npurt.hexagon.connect.connection import Connection
from npurt.hexagon.connect.worker import Worker, connect
from npurt.hexagon.device.batch import Batch, PlacedWeight
from npurt.hexagon.device.session_memory import SessionMemory
from npurt.hexagon.fastrpc import lib
from npurt.hexagon.layout import images
from npurt.quant.tensor import QTensor
from tests.limits import HANG_SECONDS, SOON, eventually

CONNECTIONS = {
    "invoke": {},
    "dspqueue": {"transport": "dspqueue"},
    "worker": {"worker": True},
    "worker with dspqueue": {"worker": True, "transport": "dspqueue"},
}


def connection(**fields):
    return Connection(lib.simulator(), **{"deadline": HANG_SECONDS, **fields})


def tell(settings):
    """Set the options of the simulator in this process."""
    library = lib.load([lib.simulator()])
    library.check("npurt_sim_control", settings.encode(), about=settings)


def process(domain=3):
    """Return the id of the process that simulates the DSP for this process, or 0."""
    return max(0, int(lib.load([lib.simulator()]).c.npurt_sim_process(domain)))


def kill(domain=3):
    number = process(domain)
    assert number, f"there is no DSP {domain} to kill"  # kill(0) signals the process group
    os.kill(number, signal.SIGKILL)


def end_process():
    """End the simulated DSP's process of this process, and with it its settings."""
    gc.collect()  # close the sessions of earlier tests
    if process():  # a handle that did not open leaves the process, as libcdsprpc does
        kill()
        wait_until(lambda: not process())


class Product:
    """A batch of two small products on a transport, and the expected results."""

    def __init__(self, transport, seed=1):
        rng = np.random.default_rng(seed)
        self.memory = SessionMemory(transport, lambda: 1 << 40)
        tensors = [
            QTensor.quantize(rng.standard_normal((n, 64)).astype(np.float32), "q8_0")
            for n in (32, 70)
        ]
        self.x = rng.standard_normal((3, 64)).astype(np.float32)
        self.outs = [np.zeros((3, t.shape[0]), np.float32) for t in tensors]
        self._exact = [self.x.astype(np.float64) @ t.dequantize().T.astype(float) for t in tensors]
        self.batch = Batch(self.memory, [self._upload(t) for t in tensors], 32)

    def _upload(self, tensor):
        fmt = images.format_of(tensor)
        _, part = self.memory.allocate(images.image_bytes(fmt, *tensor.shape))
        images.pack(tensor, part.array)
        self.memory.wrote(part)
        return PlacedWeight(part, *tensor.shape, fmt.number)

    def run(self):
        """Multiply and return whether the results equal the products, up to int8 rounding of x.

        Off by half a step of 1/127 of the largest of 32 at most, Gaussian numbers are off by 1/200
        as a vector; another product altogether is off by more than 1.
        """
        for out in self.outs:
            out[:] = np.nan
        self.batch.run(self.x, self.outs)
        return all(
            np.linalg.norm(out - exact) < 0.02 * np.linalg.norm(exact)
            for out, exact in zip(self.outs, self._exact, strict=True)
        )


def wait_until(true):
    assert eventually(true)


def impatient(transport):
    """Shorten the deadline of *transport* to `SOON`; a slower reply then comes too late."""
    transport = getattr(transport, "_session", transport)
    name = "_deadline" if isinstance(transport, Worker) else "deadline"
    assert getattr(transport, name) == HANG_SECONDS
    setattr(transport, name, SOON)


@contextlib.contextmanager
def opened(**fields):
    """Yield an open transport on the simulator, and close it afterwards."""
    with contextlib.closing(connect(connection(**fields))) as transport:
        yield transport
    gc.collect()
