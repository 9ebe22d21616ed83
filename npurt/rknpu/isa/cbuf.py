"""Allocate the banks of CBUF, a core's on-chip buffer, to features and one group of weights.

CBUF has 12 banks.  An entry is 64 bytes, and each line of pixels starts a new entry.  The formulas
agree with all published cases (tests/data/rknpu/cbuf_cases.json), including the int8 failures of
gregordinary/rockchip-npu-notes and the row limits of happyme531/rknpu2_matmul_open.
"""

from bisect import bisect_right

from npurt.errors import LayoutError
from npurt.rknpu.isa.formats import ATOM, NumberFormat

BANKS = 12  # [M] rkt_ml.h
BANK_BYTES = 32 * 1024  # [M] rkt_ml.h
ENTRY_BYTES = 64
MAX_LINES = 1022  # [M] FEATURE_GRAINS has 10 bits and holds lines + 1
MAX_WIDTH = 2047  # [M] DATAIN_WIDTH, 11 bits


def entries(format: NumberFormat, k: int, width: int) -> int:
    """Return DATA_ENTRIES: the entries of one line of *width* pixels with *k* channels."""
    whole, rest = divmod(-(-format.in_bytes(k) // ATOM), ENTRY_BYTES // ATOM)
    # Several pixels share an entry for their last 1 or 2 atoms; 3 atoms take an entry each.
    tail = width if rest == 3 else -(-rest * width // 4)
    return whole * width + tail


def data_banks(format: NumberFormat, k: int, width: int, height: int) -> int:
    """Return the number of banks for the features of one task."""
    return -(-height * entries(format, k, width) * ENTRY_BYTES // BANK_BYTES)


def weight_banks(format: NumberFormat, k: int) -> int:
    """Return the number of banks for one group of kernels; the next group replaces it."""
    return -(-format.group * format.in_bytes(k) // BANK_BYTES)


def max_lines(format: NumberFormat, k: int, width: int) -> int:
    """Return the largest number of lines of *width* pixels in one task; 0 if none fits."""
    return min(_entries_left(format, k) // entries(format, k, width), MAX_LINES)


def max_width(format: NumberFormat, k: int) -> int:
    """Return the largest number of pixels in a task of one line; 0 if none fits."""
    fits = range(MAX_WIDTH + 1)
    return bisect_right(fits, _entries_left(format, k), key=lambda w: entries(format, k, w)) - 1


def _entries_left(format: NumberFormat, k: int) -> int:
    """Return the number of entries for features beside one group of kernels."""
    return max(0, BANKS - weight_banks(format, k)) * (BANK_BYTES // ENTRY_BYTES)


def split(format: NumberFormat, k: int, width: int, height: int) -> tuple[int, int]:
    """Return the numbers of banks of features and of weights; weights get all other banks.

    Raises:
        LayoutError: Features and one group of weights do not fit CBUF.
    """
    data, weights = data_banks(format, k, width, height), weight_banks(format, k)
    if data + weights > BANKS:
        raise LayoutError(
            f"{width * height} rows of K = {k} in {format.name} need {data} + {weights} banks of "
            f"CBUF, which has {BANKS}",
            remedy="use fewer rows a task, or split K",
        )
    return data, BANKS - data
