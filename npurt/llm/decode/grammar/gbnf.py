r"""GBNF, llama.cpp's form of grammars, as Lark.

The converter of llguidance 1.9 does it, after what it does wrong is written otherwise: it shortens
``\u00e9`` to ``\ue9`` and ``("a"?)?`` to ``"a"??``, which are errors; its ``.`` is no line feed.
Source: llama.cpp grammars/README.md and src/llama-grammar.cpp, MIT: escapes, and what ``.`` means.
"""

import importlib
import re

from npurt.errors import GrammarError

# A string, a set of characters, a comment, the beginning of a group, any character.
PART = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|\(|\.', re.DOTALL)
INSTEAD = {"(": '("" ', ".": f"[\\x00-{chr(0x10FFFF)}]"}  # a group of two things keeps its brackets
ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def lark_of(text: str) -> str:
    """Return the GBNF grammar *text* as Lark.

    Raises:
        GrammarError: It is none.
    """
    converter = importlib.import_module("llguidance.gbnf_to_lark")
    try:
        lark: str = converter.gbnf_to_lark(PART.sub(_rewritten, text))
    except GrammarError:
        raise
    except RecursionError:
        raise _wrong("it is nested too deeply") from None
    except Exception as error:  # the converter's own, or an IndexError
        raise _wrong(str(error)) from error
    return lark


def _rewritten(part: re.Match[str]) -> str:
    if part[0] in INSTEAD:
        return INSTEAD[part[0]]
    return part[0] if part[0].startswith("#") else ESCAPE.sub(_character, part[0])


def _character(escape: re.Match[str]) -> str:
    """Return an escaped character as itself, or as two digits if it may mean something."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    number = int(digits, 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise _wrong(f"{escape[0]} is no character")
    return f"\\x{number:02x}" if number < 0x80 else chr(number)


def _wrong(what: str) -> GrammarError:
    return GrammarError(f"the grammar is not GBNF: {what:.300}", remedy="correct the grammar")
