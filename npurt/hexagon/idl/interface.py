"""The interface of npurt's code on the DSP: idl/npurt.idl, compiled at its first use."""

from npurt.base.once import once
from npurt.hexagon.idl import Interface, load, shared


@once
def interface() -> Interface:
    """Return the interface ``npurt``."""
    return load(shared.path_of("idl/npurt.idl"))
