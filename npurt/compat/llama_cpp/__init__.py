"""The interface of llama-cpp-python: a script with a changed import runs with npurt.

Names, arguments, defaults and the shapes of results equal those of llama-cpp-python 0.3.36.
Options that do not affect results, such as *n_gpu_layers*, have no effect.  An unsupported option
that would affect results raises UnsupportedOp.  docs/llama-cpp-python.md lists both groups.
Source: PyPI, llama_cpp_python-0.3.36.tar.gz, MIT: names, arguments, defaults and shapes only.
"""

from typing import Any

from npurt.compat.llama_cpp import llama_types
from npurt.compat.llama_cpp.arguments import missing
from npurt.compat.llama_cpp.context import LlamaTokenizer
from npurt.compat.llama_cpp.lists import (
    LlamaGrammar,
    LlamaState,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from npurt.compat.llama_cpp.llama_cache import (
    BaseLlamaCache,
    LlamaCache,
    LlamaDiskCache,
    LlamaRAMCache,
)
from npurt.compat.llama_cpp.model import Llama

__version__ = "0.3.36"  # version of the interface

# Constants of the C interface that are values of arguments of `Llama`.
GGML_TYPE_F32, GGML_TYPE_F16 = 0, 1
GGML_TYPE_Q4_0, GGML_TYPE_Q8_0 = 2, 8  # refused; see docs/llama-cpp-python.md
LLAMA_POOLING_TYPE_UNSPECIFIED, LLAMA_POOLING_TYPE_NONE, LLAMA_POOLING_TYPE_MEAN = -1, 0, 1
LLAMA_POOLING_TYPE_CLS, LLAMA_POOLING_TYPE_LAST, LLAMA_POOLING_TYPE_RANK = 2, 3, 4
LLAMA_DEFAULT_SEED = 0xFFFFFFFF
LLAMA_SPLIT_MODE_NONE, LLAMA_SPLIT_MODE_LAYER, LLAMA_SPLIT_MODE_ROW = 0, 1, 2

# Prefixes of other names in the C interface.
C_NAMES = ("llama_", "ggml_", "gguf_", "ctypes_", "LLAMA_", "GGML_")


def __getattr__(name: str) -> Any:
    """Return the type *name* of `llama_types`.

    Raises:
        AttributeError: llama-cpp-python has no such name.
        UnsupportedOp: *name* belongs to the C interface.
    """
    if not name.startswith("_") and hasattr(llama_types, name):
        return getattr(llama_types, name)
    if name.startswith(C_NAMES):
        raise missing(name, "use the class Llama: npurt has no interface of C functions")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "GGML_TYPE_F16",
    "GGML_TYPE_F32",
    "GGML_TYPE_Q4_0",
    "GGML_TYPE_Q8_0",
    "LLAMA_DEFAULT_SEED",
    "LLAMA_POOLING_TYPE_CLS",
    "LLAMA_POOLING_TYPE_LAST",
    "LLAMA_POOLING_TYPE_MEAN",
    "LLAMA_POOLING_TYPE_NONE",
    "LLAMA_POOLING_TYPE_RANK",
    "LLAMA_POOLING_TYPE_UNSPECIFIED",
    "LLAMA_SPLIT_MODE_LAYER",
    "LLAMA_SPLIT_MODE_NONE",
    "LLAMA_SPLIT_MODE_ROW",
    "BaseLlamaCache",
    "Llama",
    "LlamaCache",
    "LlamaDiskCache",
    "LlamaGrammar",
    "LlamaRAMCache",
    "LlamaState",
    "LlamaTokenizer",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]
