"""Upload the weights of a device to its sessions, and again to new sessions after a loss."""

import weakref

from npurt.errors import DeviceFull
from npurt.hexagon.device.sessions import Sessions
from npurt.hexagon.device.weights import HexagonPacked


class WeightStore:
    """The weights of a device.  The image of a weight is in the first session with space for it."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._packed: weakref.WeakSet[HexagonPacked] = weakref.WeakSet()

    def upload(self, packed: HexagonPacked) -> None:
        """Upload a weight; `upload_again` uploads it to new sessions.

        Raises:
            DeviceFull: No session has memory for the weight.
        """
        self._place(packed)
        self._packed.add(packed)

    def upload_again(self) -> None:
        """Upload all weights that are still in use; errors as `upload`."""
        for packed in sorted(self._packed, key=lambda p: p.number):
            self._place(packed)

    def _place(self, packed: HexagonPacked) -> None:
        for memory in self._sessions.with_space():
            found = memory.allocate(packed.nbytes)
            if found:
                packed.put(memory, *found)
                return
        raise DeviceFull(
            f"{packed.device.caps.name} has no memory for {packed.nbytes} more bytes",
            remedy="use a smaller model, or close other programs that use the DSP",
            call="pack",
            code=0,
        )
