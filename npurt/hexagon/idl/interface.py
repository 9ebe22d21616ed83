"""What our code on the DSP can be asked: idl/npurt.idl, compiled when it is first needed."""

from pathlib import Path

from npurt.hexagon.idl import Interface, load
from npurt.once import once

_PLACES = (  # in a wheel, in a checkout
    Path(__file__).with_name("npurt.idl"),
    Path(__file__).parents[3] / "idl/npurt.idl",
)


@once
def interface() -> Interface:
    """Return the interface ``npurt``."""
    return load(next((path for path in _PLACES if path.exists()), _PLACES[0]))
