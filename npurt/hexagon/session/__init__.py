"""A session with npurt's skel: which skel, the batch messages, and how they are transported.

May import the rooms `idl`, `fastrpc` and `layout`.
Begin with `transport`, the interface, and `session`, the default one.
"""

from npurt.hexagon.session.session import NONCE_MASK, Session

__all__ = ["NONCE_MASK", "Session"]
