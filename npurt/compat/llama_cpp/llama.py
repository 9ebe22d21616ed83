"""Names of the module llama_cpp.llama."""

from npurt.compat.llama_cpp.lists import (
    LlamaGrammar,
    LlamaState,
    LogitsProcessor,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
)
from npurt.compat.llama_cpp.model import Llama

__all__ = [
    "Llama",
    "LlamaGrammar",
    "LlamaState",
    "LogitsProcessor",
    "LogitsProcessorList",
    "MinTokensLogitsProcessor",
    "StoppingCriteria",
    "StoppingCriteriaList",
]
