"""Names of the module llama_cpp.llama_grammar."""

from typing import Any

from npurt.compat.llama_cpp.arguments import missing
from npurt.compat.llama_cpp.lists import LlamaGrammar
from npurt.compat.llama_cpp.refused import refused_class, refused_function

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"
# A grammar of JSON in GBNF.
JSON_GBNF = r"""
root ::= object
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" space (pair ("," space pair)*)? "}" space
pair ::= string ":" space value
array ::= "[" space (value ("," space value)*)? "]" space
string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" space
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? space
space ::= [ \t\n]{0,20}
"""

SchemaConverter = refused_class("SchemaConverter", "use LlamaGrammar.from_json_schema")
json_schema_to_gbnf = refused_function("json_schema_to_gbnf", "use LlamaGrammar.from_json_schema")

GRAMMARS = frozenset([
    "ARITHMETIC_GBNF", "C_GBNF", "CHESS_GBNF", "JAPANESE_GBNF", "JSON_ARR_GBNF", "LIST_GBNF"
])  # fmt: skip
# Names of llama-cpp-python's JSON schema converter.
CONVERTER = frozenset([
    "BuiltinRule", "DOT", "DOTALL", "ESCAPED_IN_REGEXPS_BUT_NOT_IN_LITERALS",
    "GRAMMAR_LITERAL_ESCAPES", "GRAMMAR_LITERAL_ESCAPE_RE", "INVALID_RULE_CHARS_RE",
    "NON_LITERAL_SET", "PRIMITIVE_RULES", "RESERVED_NAMES", "SPACE_RULE", "STRING_FORMAT_RULES",
])  # fmt: skip


def __getattr__(name: str) -> Any:
    """Raise UnsupportedOp for unsupported names of llama-cpp-python, else AttributeError."""
    if name in GRAMMARS:
        raise missing(name, "pass the grammar as text to LlamaGrammar.from_string")
    if name in CONVERTER:
        raise missing(name, "use LlamaGrammar.from_json_schema")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["JSON_GBNF", "LLAMA_GRAMMAR_DEFAULT_ROOT", "LlamaGrammar"]
