"""A session with npurt's skel: choice of the skel, messages of batches, and their transports.

May import `idl`, `fastrpc` and `layout`.
Begin with `transport`, the interface, and `session`, the default transport.
"""

from npurt.hexagon.session.session import NONCE_MASK, Session

__all__ = ["NONCE_MASK", "Session"]
