"""The interface that carries a batch to the DSP and its reply back.

`Session` implements it with one FastRPC invoke for each batch, `dspqueue.Queue` with messages, and
`worker.Worker` with another process.
"""

import abc
from enum import StrEnum
from typing import NamedTuple, Protocol

from npurt.hexagon.fastrpc.rpcmem import U8, Block


class TransportName(StrEnum):
    """The transports."""

    INVOKE = "invoke"
    DSPQUEUE = "dspqueue"
    WORKER = "worker"  # another process, with one of the others


class Info(NamedTuple):
    """Facts about our code and the DSP, as our code reports them; info_t of idl/npurt.idl."""

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
    """See `Transport.prepare`."""

    def __call__(self, written: Block | None = None, read: Block | None = None) -> None:
        """Send the request and wait for the reply."""


class Transport(abc.ABC):
    """A session on the DSP, and memory shared with it.

    Attributes:
        name: Which transport it is.
        info: What our code on the DSP says of itself.
        simulated: Whether it runs in npurt's simulator: for people, nothing else depends on it.
    """

    name: TransportName
    info: Info
    simulated: bool

    @abc.abstractmethod
    def allocate(self, nbytes: int) -> Block:
        """Return shared memory that the DSP has mapped; it lives until `free` or `close`.

        Raises:
            DeviceFull: There is not so much, here or on the DSP.
        """

    @abc.abstractmethod
    def free(self, block: Block) -> None:
        """Unmap *block*; its memory is freed with the last array of it."""

    @abc.abstractmethod
    def sync_for_device(self, block: Block) -> None:
        """Make the host's writes to *block* visible to the DSP."""

    @abc.abstractmethod
    def sync_for_cpu(self, block: Block) -> None:
        """Make the DSP's writes to *block* visible to the host."""

    @abc.abstractmethod
    def prepare(self, request: U8, reply: U8) -> Send:
        """Return a function that sends *request* as it stands then, and fills *reply*.

        Its arguments are the block that the host has written for this call, and the block that
        it will read: the first is synchronised before, the second after.

        It raises DeviceLost when the DSP process is gone, DeviceTimeout when it does not answer in
        time, and DriverError when it refuses.
        """

    @abc.abstractmethod
    def settle(self) -> None:
        """Wait for calls that Ctrl-C interrupted."""

    def packets(self) -> int:
        """Return how many packets of instructions it executed so far; 0 where nobody counts."""
        return 0

    @abc.abstractmethod
    def close(self) -> None:
        """Release session and memory.  A second call does nothing."""
