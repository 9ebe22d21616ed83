"""Choose the format of a model's calls from its chat template."""

from npurt.llm.decode.calls.coder import Coder
from npurt.llm.decode.calls.format import CallFormat
from npurt.llm.decode.calls.hermes import Hermes
from npurt.llm.decode.calls.llama3 import Llama3, Pythonic
from npurt.llm.decode.calls.mistral import Mistral

# The first string found in the template decides.  <|start_header_id|> is Llama 3's markup of turns.
SIGNS: tuple[tuple[str, type[CallFormat]], ...] = (
    ("<function=", Coder),
    ("<tool_call>", Hermes),
    ("[TOOL_CALLS]", Mistral),
    ("func_name1(params_name1", Pythonic),
    ("<|start_header_id|>", Llama3),
    ("<|python_tag|>", Llama3),
)


def format_of(template: str) -> CallFormat:
    """Return the format of calls of a model with *template*; `Hermes` if it is unknown."""
    return next((kind() for sign, kind in SIGNS if sign in template), Hermes())
