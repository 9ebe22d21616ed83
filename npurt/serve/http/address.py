"""Where the server listens."""

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from npurt.errors import SettingError
from npurt.runtime.open.arguments import integer

REMEDIES = {  # when a socket cannot listen
    errno.EADDRINUSE: "choose another --port, or end what uses it",
    errno.EACCES: "choose a --port above 1023",
}


@dataclass(frozen=True, slots=True)
class Address:
    """Where the server listens, and to whom.

    Attributes:
        keys: API keys; none: everyone may ask.
        hosts, origins: See `Guard`.
        insecure: Listen beyond this machine without keys.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    insecure: bool = False

    @property
    def is_open(self) -> bool:
        """Whether other machines can ask without a key."""
        return not self.keys and self.host not in ("127.0.0.1", "::1", "localhost")

    def require_safe(self) -> None:
        """Refuse to listen beyond this machine without a key.

        Raises:
            SettingError: That is so, and not wanted.
        """
        if self.is_open and not self.insecure:
            raise SettingError(
                f"everyone who reaches {self.host} could use the model",
                remedy="give --api-key-file FILE, or --insecure if that is what you want",
            )

    def listen(self) -> socket.socket:
        """Return a socket that listens.

        Raises:
            SettingError: It cannot listen at the address.
        """
        integer("port", self.port, 0, 65535)
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            listening = socket.create_server((self.host, self.port), family=family, backlog=1024)
        except OSError as error:
            why = str(error.strerror).partition(" (while")[0]  # what follows repeats the address
            raise SettingError(
                f"cannot listen on {self.host} port {self.port}: {why}",
                remedy=REMEDIES.get(error.errno or 0, "give --host an address of this machine"),
            ) from error
        # Connections inherit this.  Without it a small packet waits until the client confirms the
        # one before it, which a client on Linux does after 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
