"""The interface of mlx-lm: change the import, and a script runs, with GGUF files.

Names, arguments, defaults and fields are those of mlx-lm 0.32.2.  Arrays are numpy's, of the same
shapes: functions that a script passes in get and return those.  Options that would change a result
and are missing here raise UnsupportedOp with their name.  docs/mlx-lm.md lists what works.  Source:
PyPI, mlx_lm-0.32.2.tar.gz, MIT: names, arguments, defaults, fields and formulas only.
"""

from typing import Any, NoReturn

from npurt.compat.mlx_lm.batch import BatchResponse, BatchStats, batch_generate
from npurt.compat.mlx_lm.generate import GenerationResponse, generate, stream_generate
from npurt.compat.mlx_lm.missing import missing
from npurt.compat.mlx_lm.utils import load

__version__ = "0.32.2"  # of the interface


def convert(*arguments: Any, **options: Any) -> NoReturn:
    """Refuse: the command `npurt convert` makes GGUF files."""
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
