"""The interface that carries a batch to the DSP and its reply back.

`Session` sends a batch with a FastRPC invoke, `dspqueue.Queue` with a message, and `worker.Worker`
through another process.
"""

import abc
from enum import StrEnum
from typing import NamedTuple, Protocol

from npurt.hexagon.fastrpc.rpcmem import U8, Block


class TransportName(StrEnum):
    """The names of the transports."""

    INVOKE = "invoke"
    DSPQUEUE = "dspqueue"
    WORKER = "worker"  # another process, which uses invoke or dspqueue


class Info(NamedTuple):
    """The properties of the skel and the DSP that the skel reports: info_t of idl/npurt.idl."""

    protocol: int
    arch: int
    threads: int
    hvx_units: int
    vtcm_bytes: int
    power: int
    max_maps: int
    reserved: int
    build: int


class Send(Protocol):
    """The function that `Transport.prepare` returns."""

    def __call__(self, written: Block | None = None, read: Block | None = None) -> None:
        """Send the request and wait for the reply."""


class Transport(abc.ABC):
    """A session on the DSP, and memory shared with the DSP.

    Attributes:
        name: The name of the transport.
        info: The properties that npurt's code on the DSP reports.
        simulated: Whether the DSP is npurt's simulator; only messages for the user depend on it.
    """

    name: TransportName
    info: Info
    simulated: bool

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """Return shared memory that the DSP has mapped until `free` or `close`.

        Raises:
            DeviceFull: The host or the DSP has no memory for it.
        """

    @abc.abstractmethod
    def free(self, block: Block) -> None:
        """Unmap *block*; its memory is freed when no array refers to it."""

    @abc.abstractmethod
    def sync_for_device(self, block: Block) -> None:
        """Make the host's writes to *block* visible to the DSP."""

    @abc.abstractmethod
    def sync_for_cpu(self, block: Block) -> None:
        """Make the DSP's writes to *block* visible to the host."""

    @abc.abstractmethod
    def prepare(self, request: U8, reply: U8) -> Send:
        """Return a function that sends the current bytes of *request* and fills *reply*.

        The function takes two blocks: the block that the host has written for the call, which it
        synchronises before the call, and the block that the host will read, which it synchronises
        after the call.

        The function raises DeviceLost if the DSP process is gone, DeviceTimeout if the DSP does not
        answer in time, and DriverError if the DSP refuses the call.
        """

    @abc.abstractmethod
    def settle(self) -> None:
        """Wait until calls that Ctrl-C interrupted have ended."""

    def packets(self) -> int:
        """Return the number of instruction packets executed so far; 0 if they are not counted."""
        return 0

    @abc.abstractmethod
    def close(self) -> None:
        """Release the session and its memory.  A second call does nothing."""
