"""The interface of mlx-lm: a script with a changed import runs with npurt and GGUF files.

Names, arguments, defaults and fields equal those of mlx-lm 0.32.2.  Arrays are numpy arrays of the
same shapes; functions that a script passes receive and return numpy arrays.  An unsupported option
that would affect results raises UnsupportedOp.  docs/mlx-lm.md lists the supported options.
Source: PyPI, mlx_lm-0.32.2.tar.gz, MIT: names, arguments, defaults, fields and formulas only.
"""

from typing import Any, NoReturn

from npurt.compat.mlx_lm.batch import BatchResponse, BatchStats, batch_generate
from npurt.compat.mlx_lm.generate import GenerationResponse, generate, stream_generate
from npurt.compat.mlx_lm.missing import missing
from npurt.compat.mlx_lm.utils import load

__version__ = "0.32.2"  # version of the interface


def convert(*arguments: Any, **options: Any) -> NoReturn:
    """Raise UnsupportedOp: the command `npurt convert` creates GGUF files."""
    raise missing("convert", "use the command `npurt convert`")


__all__ = [
    "BatchResponse",
    "BatchStats",
    "GenerationResponse",
    "batch_generate",
    "convert",
    "generate",
    "load",
    "stream_generate",
]
