"""Split an IDL file into tokens, and report errors with their position in the file."""

import re
from dataclasses import dataclass
from typing import NoReturn

from npurt.errors import NpurtError

MAX_BYTES = 1 << 20  # limit for a file; 100 times the largest known interface

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<include>\#[ \t]*include[ \t]*(?:"[^"\n]*"|<[^>\n]*>))
      | (?P<name>[A-Za-z_]\w*)
      | (?P<float>\d+(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]?\d+)\b)
      | (?P<integer>(?:0[xX][0-9A-Fa-f]+|0|[1-9]\d*)\b)
      | (?P<text>"(?:[^"\\\n]|\\["'\\nrt0])*")
      | (?P<char>'(?:[^'\\\n]|\\["'\\nrt0])')
      | (?P<mark>[{}()<>\[\];:,=-])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0"}


@dataclass(frozen=True, slots=True)
class Token:
    """A token; *kind* is a group of `_TOKEN`, or "end"."""

    kind: str
    text: str
    offset: int

    def value(self) -> int | float | str | None:
        """Return the value of a literal, None for other tokens; a character has its code."""
        if self.kind == "integer":
            return int(self.text, 0)
        if self.kind == "float":
            return float(self.text)
        if self.kind in ("text", "char"):
            text = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), self.text[1:-1])
            return text if self.kind == "text" else ord(text)
        return None


class IdlSource:
    """The text of a file, with its tokens and the positions of errors."""

    def __init__(self, text: str, name: str) -> None:
        self.text = text
        self.name = name

    def refuse(self, offset: int, what: str, *, remedy: str = "mend the file there") -> NoReturn:
        """Raise an error for the character at *offset*.

        Raises:
            NpurtError: Always; the message begins with file, line and column.
        """
        line = self.text.count("\n", 0, offset) + 1
        column = offset - (self.text.rfind("\n", 0, offset) + 1) + 1
        raise NpurtError(f"{self.name}:{line}:{column}: {what}", remedy=remedy)

    def tokens(self) -> list[Token]:
        """Return all tokens; the last token has the kind "end".

        Raises:
            NpurtError: The file is too large, or holds characters that are no token.
        """
        if len(self.text) > MAX_BYTES:
            self.refuse(0, f"expected at most {MAX_BYTES} characters, found {len(self.text)}")
        found = []
        offset = 0
        while offset < len(self.text):
            match = _TOKEN.match(self.text, offset)
            if match is None:
                self._no_token(offset)
            if match.lastgroup != "space":
                found.append(Token(str(match.lastgroup), match.group(), offset))
            offset = match.end()
        found.append(Token("end", "the end of the file", offset))
        return found

    def _no_token(self, offset: int) -> NoReturn:
        if self.text.startswith("/*", offset):
            self.refuse(offset, "expected */ at the end of this comment, found none")
        if self.text[offset] == '"':
            self.refuse(offset, "expected a text that ends on its line, with the escapes of C")
        self.refuse(offset, f"expected a declaration, found {self.text[offset]!r}")
