"""Files that C and Python both read.

In a wheel they lie beside this module, in a checkout where C has them.
"""

import re
from pathlib import Path

from npurt.errors import DeviceNotFound

_WHEEL = Path(__file__).parent
_CHECKOUT = Path(__file__).parents[3]


def path_of(name: str) -> Path:
    """Return where *name* is: a file below the root of a checkout, such as "dsp/formats.inc"."""
    built = _WHEEL / Path(name).name
    return built if built.exists() else _CHECKOUT / name


def read(name: str) -> str:
    """Return the text of *name*, without comments of C.

    Raises:
        DeviceNotFound: It cannot be read.
    """
    try:
        text = path_of(name).read_text(encoding="utf-8")
    except OSError as error:
        raise DeviceNotFound(f"cannot read {name}: {error}", remedy="reinstall npurt") from error
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def numbers(name: str) -> dict[str, int]:
    """Return the numbers that the header *name* defines; those of an enum too.

    Raises:
        DeviceNotFound: It cannot be read.
    """
    text = read(name)
    found = re.findall(r"^#define (\w+) (0x[0-9a-f]+|\d+)u?\s*$", text, flags=re.M)
    found += re.findall(r"\b(NPURT_\w+) = (0x[0-9a-f]+|\d+)\b", text)
    return {key: int(value, 0) for key, value in found}


def rows(name: str, macro: str) -> list[list[str]]:
    """Return the arguments of each line "macro(...)" of *name*: the rows of an X-macro table.

    Raises:
        DeviceNotFound: It cannot be read.
    """
    found = re.findall(rf"^{macro}\((.*)\)$", read(name), flags=re.M)
    return [[cell.strip() for cell in row.split(",")] for row in found]
