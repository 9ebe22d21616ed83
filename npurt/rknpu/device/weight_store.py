"""Store the weights of a device in the NPU's memory; upload them again after a loss."""

import functools
import weakref
from collections import deque
from collections.abc import Sequence

from npurt.device.device import Use
from npurt.errors import DeviceFull
from npurt.rknpu.device.arena import Arena, Arenas
from npurt.rknpu.device.needs import need_of, weight_plans
from npurt.rknpu.device.prepared import PreparedCalls
from npurt.rknpu.device.weights import PartOnNpu, RkPacked
from npurt.rknpu.driver.base import Driver


class WeightStore:
    """The weights of a device, and the calls that are prepared with them.

    Attributes:
        driver: The opened driver.
        calls: The prepared calls.
        dropped: Numbers and memory of weights that were garbage-collected; see `free_dropped`.
        evicted: Whether some weights may have no memory; see `upload_missing`.
        short: Rows at once of calls that lack memory, by the numbers of their weights.
    """

    def __init__(self, driver: Driver) -> None:
        self.dropped: deque[tuple[int, list[PartOnNpu]]] = deque()
        self._packed: weakref.WeakValueDictionary[int, RkPacked] = weakref.WeakValueDictionary()
        self._uses: Sequence[Use] = ()
        self.evicted = False
        self._use(driver)

    def _use(self, driver: Driver) -> None:
        self.driver = driver
        self.calls = PreparedCalls(driver)
        self.short: dict[tuple[int, ...], int] = {}
        self._arenas = Arenas(driver)

    def reserve(self, uses: Sequence[Use]) -> None:
        """Reserve work buffers with this and later drivers; see `Arenas.reserve`."""
        self._uses = uses
        self._arenas.reserve(uses)

    # --- Uploads ----------------------------------------------------------------------------------

    def upload(self, packed: RkPacked) -> None:
        """Upload a weight with this and later drivers; free it when it is garbage-collected.

        Raises:
            DeviceFull: The NPU has too little memory.
        """
        if self.evicted:  # full arenas may have space again
            self._arenas.freed()
        self._upload(packed)
        self._packed[packed.number] = packed
        dropped = packed.number, packed.parts
        weakref.finalize(packed, self.dropped.append, dropped).atexit = False

    def _upload(self, packed: RkPacked) -> None:
        self.free_dropped()
        self._arenas.place(packed.nbytes, functools.partial(self._upload_to, packed))

    def _upload_to(self, packed: RkPacked, arena: Arena) -> None:
        """Upload a weight; if nothing was reserved, reserve work buffers for one row first."""
        if not self._uses:
            parts = weight_plans(packed.scheme, packed.n, packed.k, len(arena.spaces))
            arena.ensure(self.driver, need_of([parts], packed.scheme.passes))
        packed.upload(arena)

    def free_dropped(self) -> None:
        """Free the memory of garbage-collected weights, and the calls prepared with them."""
        while self.dropped:
            number, parts = self.dropped.popleft()
            self.calls.forget(number)
            for part in parts:
                part.free()
            self._arenas.freed()
            self.short.clear()

    # --- Another driver ---------------------------------------------------------------------------

    def upload_again(self, driver: Driver) -> None:
        """Upload all weights with *driver*, or as many as fit.

        A product with a weight that did not fit raises DeviceFull.
        """
        self._use(driver)
        self.evicted = True
        try:
            self._arenas.reserve(self._uses)
            for _, packed in sorted(self._packed.items()):
                self._upload(packed)
        except DeviceFull:
            return
        self.evicted = False

    def upload_missing(self, weights: Sequence[RkPacked]) -> None:
        """Upload the weights that have no memory; full arenas may have space again.

        Raises:
            DeviceFull: A weight does not fit.
        """
        self._arenas.freed()
        for w in weights:
            if not w.has_memory:
                self._upload(w)

    def clear(self) -> None:
        """Forget all buffers, which the driver frees when it is closed."""
        for packed in self._packed.values():
            packed.parts.clear()
        self.dropped.clear()
        self.calls.made.clear()
        self._arenas.clear()
