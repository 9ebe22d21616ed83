"""An extension of griffe: arguments that share a line of a docstring get a row each.

Without it, "top_k, top_p: Remove candidates" is one row, with no type and without the defaults.
"""

import re
from typing import Any

from griffe import Extension, Object

SECTION = re.compile(r"^(?P<indent> *)Args:\n(?P<body>(?:(?P=indent) +\S.*\n?|\n)*)", re.M)


class SharedLines(Extension):
    """Changes the docstrings that griffe has loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Separate the arguments in the docstring of *obj*."""
        if obj.docstring is not None:
            obj.docstring.value = separated(obj.docstring.value)


def separated(docstring: str) -> str:
    """Return *docstring* with an entry for each argument of an entry "a, b: text"."""
    return SECTION.sub(lambda found: _section(found["indent"], found["body"]), docstring)


def _section(indent: str, body: str) -> str:
    entries = re.split(rf"^(?={indent} {{4}}\S)", body, flags=re.M)
    return f"{indent}Args:\n" + "".join(map(_entry, entries))


def _entry(text: str) -> str:
    found = re.match(r"( *)([\w*]+(?:,\s+[\w*]+)+)(:.*)", text, re.S)
    if not found:
        return text
    space, names, rest = found.groups()
    end = rest if rest.endswith("\n") else f"{rest}\n"
    return "".join(f"{space}{name}{end}" for name in re.split(r",\s+", names))
