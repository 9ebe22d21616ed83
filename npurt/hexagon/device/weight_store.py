"""The weights of a device in the memory of its sessions, and in that of new ones after a loss."""

import weakref

from npurt.errors import DeviceFull
from npurt.hexagon.device.sessions import Sessions
from npurt.hexagon.device.weights import HexagonPacked


class WeightStore:
    """The weights of a device; a session that has room has the image of each."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._packed: weakref.WeakSet[HexagonPacked] = weakref.WeakSet()

    def upload(self, packed: HexagonPacked) -> None:
        """Upload a weight, now and with `upload_again`.

        Raises:
            DeviceFull: No session has room for it.
        """
        self._place(packed)
        self._packed.add(packed)

    def upload_again(self) -> None:
        """Upload all weights that are still in use; errors as `upload`."""
        for packed in sorted(self._packed, key=lambda p: p.number):
            self._place(packed)

    def _place(self, packed: HexagonPacked) -> None:
        for memory in self._sessions.with_room():
            found = memory.allocate(packed.nbytes)
            if found:
                packed.put(memory, *found)
                return
        raise DeviceFull(
            f"{packed.device.caps.name} has no room for {packed.nbytes} bytes more",
            remedy="use a smaller model, or close other programs that use the DSP",
            call="pack",
            code=0,
        )
