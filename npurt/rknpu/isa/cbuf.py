"""The on-chip buffer of a core: 12 banks, shared by features and one group of weights.

The rule agrees with every published point (tests/data/rknpu/cbuf_cases.json), among them the
int8 failures that gregordinary/rockchip-npu-notes found and the row limits of
happyme531/rknpu2_matmul_open.  An entry is 64 bytes; each line of pixels starts a new one.
"""

from bisect import bisect_right

from npurt.errors import LayoutError
from npurt.rknpu.isa.formats import ATOM, NumberFormat

BANKS = 12  # [M] rkt_ml.h
BANK_BYTES = 32 * 1024  # [M] rkt_ml.h
ENTRY_BYTES = 64
MAX_LINES = 1022  # [M] FEATURE_GRAINS, 10 bits, is lines + 1
MAX_WIDTH = 2047  # [M] DATAIN_WIDTH, 11 bits


def entries(format: NumberFormat, k: int, width: int) -> int:
    """Entries of one line of *width* pixels with *k* channels: DATA_ENTRIES."""
    whole, rest = divmod(-(-format.in_bytes(k) // ATOM), ENTRY_BYTES // ATOM)
    tail = width if rest == 3 else -(-rest * width // 4)  # 1 or 2 atoms of several pixels share
    return whole * width + tail


def data_banks(format: NumberFormat, k: int, width: int, height: int) -> int:
    """Banks that the features of one task take."""
    return -(-height * entries(format, k, width) * ENTRY_BYTES // BANK_BYTES)


def weight_banks(format: NumberFormat, k: int) -> int:
    """Banks that one group of kernels takes; the next group replaces it when it has been used."""
    return -(-format.group * format.in_bytes(k) // BANK_BYTES)


def max_lines(format: NumberFormat, k: int, width: int) -> int:
    """Most lines of *width* pixels in one task; 0 when they never fit."""
    return min(_entries_left(format, k) // entries(format, k, width), MAX_LINES)


def max_width(format: NumberFormat, k: int) -> int:
    """Most pixels of the only line of a task; 0 when they never fit."""
    fits = range(MAX_WIDTH + 1)
    return bisect_right(fits, _entries_left(format, k), key=lambda w: entries(format, k, w)) - 1


def _entries_left(format: NumberFormat, k: int) -> int:
    """Entries that one group of kernels leaves to the features."""
    return max(0, BANKS - weight_banks(format, k)) * (BANK_BYTES // ENTRY_BYTES)


def split(format: NumberFormat, k: int, width: int, height: int) -> tuple[int, int]:
    """Return the banks of features and of weights, which get the rest.

    Raises:
        LayoutError: They do not fit.
    """
    data, weights = data_banks(format, k, width, height), weight_banks(format, k)
    if data + weights > BANKS:
        raise LayoutError(
            f"{width * height} rows of K = {k} in {format.name} need {data} + {weights} banks of "
            f"CBUF, which has {BANKS}",
            remedy="use fewer rows a task, or split K",
        )
    return data, BANKS - data
