"""States of gated delta nets on the DSP, and the calls that take them through tokens.

A caller's state is float32 in its own array.  Its form on the DSP is kept from call to call, and
used as long as the array holds the very bits that were last written to it: that is compared, whole,
so a state that somebody else has changed is never missed.
"""

import math
import weakref
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from npurt.device import F32, DeltaNet
from npurt.errors import DeviceFull
from npurt.hexagon import delta, messages
from npurt.hexagon.delta import Shape
from npurt.hexagon.messages import Flag, Kind, Request
from npurt.hexagon.rpcmem import LARGEST, Arena, Slice
from npurt.hexagon.store import SCRATCH_BYTES, Store

MOST_TOKENS = 512  # of all sequences, in a batch
MOST_STATES = 256  # that are kept


@dataclass(frozen=True, slots=True)
class Form:
    """A state as it was on the DSP, and the float32 that the caller has of it."""

    words: npt.NDArray[np.int32]
    bits: npt.NDArray[np.uint32]


class States:
    """The states of one net on the DSP, and the op that advances them."""

    def __init__(self, store: Store, shape: Shape) -> None:
        found = store.take(shape.state_bytes)
        if found is None:
            raise DeviceFull(
                f"the DSP has no room for {shape.state_bytes} bytes of a delta net's states",
                remedy="use a smaller model, or close other programs that use the DSP",
                call="delta_net",
                code=0,
            )
        self._keep(*found)
        self._shape = shape
        self._last = shape.width - shape.along_v - 1  # float of a row of y that is read last
        self._known: npt.NDArray[np.uint32] | None = None  # bits that the caller has been given
        self._scratch = store.scratch
        fitting = store.scratch.nbytes // (shape.sequences * sum(shape.row_bytes))
        self.tokens = max(1, min(fitting, MOST_TOKENS // shape.sequences))
        self._rows = shape.sequences * self.tokens
        self._widths = shape.row_bytes
        self._prepare(store)

    def _keep(self, arena: Arena, part: Slice) -> None:
        self._part = part
        weakref.finalize(self, arena.give_back, part)

    def _prepare(self, store: Store) -> None:
        shape, scratch = self._shape, self._scratch
        x_bytes, y_bytes = self._widths
        self._request = Request(1)
        op = self._op = self._request.ops[0]
        op["kind"] = Kind.DELTA
        op["flags"] = Flag.GROUPED * shape.grouped | Flag.GATES * shape.gates
        op["k"], op["n"], op["format"] = shape.width, shape.heads, shape.k_heads
        op["group"] = shape.sequences
        op["scale"] = np.float32(shape.scale).view(np.uint32)
        op["x"] = scratch.fd, 0, x_bytes * self._rows, x_bytes
        op["w"] = self._part.block.fd, self._part.offset, self._part.nbytes, 0
        op["y"] = scratch.fd, x_bytes * self._rows, y_bytes * self._rows, y_bytes
        self._reply = messages.reply()
        self._send = store.transport.prepare(self._request.data, self._reply)

    def advance(self, net: DeltaNet) -> None:
        """Run *net*; its state is written when all of it has been done.

        Raises:
            DeviceLost: The DSP process is gone, or the call or its results did not arrive.
            DeviceTimeout: It did not answer in time.
            NumericsError: The net holds NaN or infinity.
            DriverError: It refused.
        """
        words, bits = self._words, net.state.view(np.uint32)
        if not self._knows(bits):
            self._part.block.begin(write=True)
            delta.pack_state(net.state, self._shape, words)
            self._part.block.end(write=True)
        self._known = None
        for start in range(0, net.v.shape[1], self.tokens):
            self._run(net.after(start).first(self.tokens))
        self._part.block.begin(write=False)
        delta.unpack_state(words, self._shape, net.state)
        self._part.block.end(write=False)
        self._known = bits.copy()

    @property
    def _words(self) -> npt.NDArray[np.int32]:
        return self._part.array.view(np.int32).reshape(-1, self._shape.words)

    def _knows(self, bits: npt.NDArray[np.uint32]) -> bool:
        return self._known is not None and np.array_equal(bits, self._known)

    def form(self, net: DeltaNet) -> Form | None:
        """Return a copy of what the DSP has of the state of *net*; None when it has none."""
        if self._known is None or not self._knows(net.state.view(np.uint32)):
            return None
        self._part.block.begin(write=False)
        words = self._words.copy()
        self._part.block.end(write=False)
        return Form(words, self._known)

    def resume(self, form: Form) -> None:
        """Go on from *form* when the caller's state is the one it belongs to."""
        self._part.block.begin(write=True)
        self._words[...] = form.words
        self._part.block.end(write=True)
        self._known = form.bits

    def _run(self, net: DeltaNet) -> None:
        sequences, tokens = net.v.shape[:2]
        x, y = self._views(sequences, tokens)
        self._op["m"] = tokens
        self._scratch.begin(write=True)
        delta.write_rows(net, self._shape, x)
        y[-1, -1, self._last] = math.nan
        self._scratch.end(write=True)
        self._request.next()
        self._send()
        messages.check(self._request, self._reply)
        self._scratch.begin(write=False)
        delta.read_rows(y, self._shape, net.out)
        self._scratch.end(write=False)
        messages.check_results([net.out[-1, -1, -1, -1]])

    def _views(self, sequences: int, tokens: int) -> list[F32]:
        """Return x and y ``[N, T, floats]`` in the scratch memory."""
        views, start = [], 0
        for width in self._widths:
            part = self._scratch.array[start : start + sequences * tokens * width]
            views.append(part.view(np.float32).reshape(sequences, tokens, -1))
            start += self._rows * width
        return views


class Recurrence:
    """States of the nets of a device, by the memory that their callers keep them in."""

    def __init__(self) -> None:
        self._states: OrderedDict[tuple[int, Shape], States] = OrderedDict()

    def why_not(self, net: DeltaNet) -> str | None:
        """Return None, or the first rule that *net* breaks."""
        shape = delta.shape_of(net)
        if shape.width % 16 or not 0 < shape.width <= delta.WIDEST:
            return f"heads are {shape.width} wide, not a multiple of 16 up to {delta.WIDEST}"
        if not 0 < shape.heads <= messages.MAX_HEADS or shape.heads % shape.k_heads:
            return f"{shape.heads} heads of v do not share {shape.k_heads} of k"
        if net.decay.shape[3] not in (1, shape.width):
            return f"a head has {net.decay.shape[3]} decays, not 1 or {shape.width}"
        if not 0 < shape.sequences <= MOST_TOKENS:
            return f"{shape.sequences} sequences are none, or more than {MOST_TOKENS}"
        if shape.sequences * sum(shape.row_bytes) > SCRATCH_BYTES:
            return f"a token of all sequences takes more than {SCRATCH_BYTES} bytes"
        if shape.state_bytes > LARGEST:
            return (
                f"its states take more than {LARGEST} bytes, the largest block that can be shared"
            )
        if not net.state.flags.c_contiguous:
            return "the state is not contiguous"
        return None

    def advance(self, net: DeltaNet, store: Store) -> None:
        """Run *net* on the session of *store*; errors as `States.advance`, and DeviceFull."""
        self._of(net, store).advance(net)

    def form(self, net: DeltaNet) -> Form | None:
        """Return a copy of what the DSP has of the state of *net*; None when it has none."""
        states = self._states.get(_key(net))
        return states.form(net) if states else None

    def resume(self, net: DeltaNet, form: Form, store: Store) -> None:
        """Go on from *form* on the session of *store*; raises DeviceFull."""
        self._of(net, store).resume(form)

    def _of(self, net: DeltaNet, store: Store) -> States:
        key = _key(net)
        states = self._states.pop(key, None) or States(store, key[1])
        while len(self._states) >= MOST_STATES:
            self._states.popitem(last=False)
        self._states[key] = states
        return states

    def forget(self) -> None:
        """Keep nothing: the session is gone."""
        self._states.clear()


def _key(net: DeltaNet) -> tuple[int, Shape]:
    return net.state.ctypes.data, delta.shape_of(net)
