"""Read files that C and Python share.

In a wheel the files are in the folder of this module; in a checkout they are in the folders of C.
"""

import re
from pathlib import Path

from npurt.errors import DeviceNotFound

_WHEEL = Path(__file__).parent
_CHECKOUT = Path(__file__).parents[3]


def path_of(name: str) -> Path:
    """Return the path of *name*, a file relative to the root of a checkout ("dsp/formats.inc")."""
    built = _WHEEL / Path(name).name
    return built if built.exists() else _CHECKOUT / name


def read(name: str) -> str:
    """Return the text of *name* without C comments.

    Raises:
        DeviceNotFound: The file cannot be read.
    """
    try:
        text = path_of(name).read_text(encoding="utf-8")
    except OSError as error:
        raise DeviceNotFound(f"cannot read {name}: {error}", remedy="reinstall npurt") from error
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S)


def numbers(name: str) -> dict[str, int]:
    """Return the numbers that the header *name* defines as macros or in enums.

    Raises:
        DeviceNotFound: The file cannot be read.
    """
    text = read(name)
    found = re.findall(r"^#define (\w+) (0x[0-9a-f]+|\d+)u?\s*$", text, flags=re.M)
    found += re.findall(r"\b(NPURT_\w+) = (0x[0-9a-f]+|\d+)\b", text)
    return {key: int(value, 0) for key, value in found}


def rows(name: str, macro: str) -> list[list[str]]:
    """Return the rows of an X-macro table: the arguments of each line "macro(...)" of *name*.

    Raises:
        DeviceNotFound: The file cannot be read.
    """
    found = re.findall(rf"^{macro}\((.*)\)$", read(name), flags=re.M)
    return [[cell.strip() for cell in row.split(",")] for row in found]
