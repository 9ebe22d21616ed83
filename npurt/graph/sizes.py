"""The largest sizes of a model that npurt runs: those of the kernels in C, which run every op."""

from dataclasses import dataclass

CHECKPOINT_SPACING = 32  # tokens between checkpoints of recurrent states: the longest replay


@dataclass(frozen=True, slots=True)
class Sizes:
    """The maximum sizes: `npurt_limit` in npurt/cpu/kernels/npurt_cpu.h has the same numbers."""

    rows: int = 512  # maximum rows of one run
    columns: int = 1 << 24  # maximum columns of any buffer or weight
    head: int = 256  # maximum width of a head of attention
    delta: int = 128  # maximum width of a head of a delta net
    head_step: int = 16  # widths of heads are multiples of this
    kernel_size: int = 8  # maximum kernel size of a convolution
    experts: int = 4096  # maximum number of experts
    exact: int = 1 << 17  # maximum columns of an exact integer product
    page: int = 64  # positions in a page of keys and values


SIZES = Sizes()
