"""The server's listening address, with its checks and its socket."""

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from npurt.errors import SettingError
from npurt.runtime.open.arguments import integer

BACKLOG = 1024  # connections that wait until the server accepts them
REMEDIES = {  # remedies for errors of a listening socket, by errno
    errno.EADDRINUSE: "choose another --port, or stop the program that uses it",
    errno.EACCES: "choose a --port above 1023",
}


@dataclass(frozen=True, slots=True)
class Address:
    """The server's listening address, and who may use the server.

    Attributes:
        keys: API keys; if empty, requests need no key.
        hosts, origins: See `AccessMiddleware`.
        insecure: Whether to accept other machines without API keys.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    insecure: bool = False

    @property
    def is_open(self) -> bool:
        """Whether other machines can send requests without an API key."""
        return not self.keys and self.host not in ("127.0.0.1", "::1", "localhost")

    def require_safe(self) -> None:
        """Check that other machines need an API key, or that *insecure* is set.

        Raises:
            SettingError: Other machines need no key, and *insecure* is not set.
        """
        if self.is_open and not self.insecure:
            raise SettingError(
                f"everyone who reaches {self.host} could use the model",
                remedy="give --api-key-file FILE, or --insecure if that is what you want",
            )

    def listen(self) -> socket.socket:
        """Return a listening socket.

        Raises:
            SettingError: The socket cannot listen at the address.
        """
        integer("port", self.port, 0, 65535)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=BACKLOG)
        except OSError as error:
            why = str(error.strerror).partition(" (while")[0]  # the rest repeats the address
            raise SettingError(
                f"cannot listen on {self.host} port {self.port}: {why}",
                remedy=REMEDIES.get(error.errno or 0, "give --host an address of this machine"),
            ) from error
        # Connections inherit TCP_NODELAY.  Without this option, a small packet waits until the
        # client acknowledges the previous packet, which a client on Linux delays by 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
