"""The gated delta net under qemu-hexagon: one process per architecture."""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npurt.hexagon.layout import delta
from tests.hexagon.qemu import Program
from tools.build import hexagon

SOURCES = [Path(__file__).with_name("delta_driver.c"), hexagon.DSP / "kernels/delta.c"]


@dataclass(frozen=True)
class Answer:
    """The kernel's results for a net."""

    failed: bool  # whether an input is NaN or infinite
    packets: int
    y: np.ndarray  # float32 [N, T, H * Wv]
    words: np.ndarray  # int32 [N * H, words of a state]


class Driver(Program):
    """A running delta_driver.c."""

    def __init__(self, arch, folder):
        super().__init__(arch, folder / f"delta_{arch}", SOURCES)

    def run(self, net, *, split=0, words=None):
        """Run *net* from *words*, by default its state's; *split* heads run in a separate call."""
        shape = delta.shape_of(net)
        sequences, tokens = net.v.shape[:2]
        rows = np.empty((sequences, tokens, sum(shape.parts)), np.float32)
        delta.DeltaRows.of(rows, shape).write(net)
        words = packed(net) if words is None else words
        numbers = tokens, sequences, shape.k_heads, shape.heads, shape.width
        job = struct.pack("<7IfI", *numbers, net.grouped, shape.gates, net.scale, split)
        self.send(job + rows.tobytes() + words.tobytes())
        failed, packets = struct.unpack("<2I", self.read(8))
        y_shape = sequences, tokens, shape.heads * shape.along_v
        y = np.frombuffer(self.read(4 * np.prod(y_shape)), np.float32).reshape(y_shape)
        after = np.frombuffer(self.read(words.nbytes), np.int32).reshape(words.shape)
        return Answer(bool(failed), packets, y, after)


def packed(net):
    """Return the words of a net's state."""
    shape = delta.shape_of(net)
    words = np.empty((shape.sequences * shape.heads, shape.words), np.int32)
    delta.pack_state(net.state, shape, words)
    return words


def results(net, answer):
    """Return the answer's `out` and state as float32."""
    shape = delta.shape_of(net)
    state = np.empty_like(net.state)
    delta.unpack_state(answer.words, shape, state)
    return delta.results(answer.y, shape), state
