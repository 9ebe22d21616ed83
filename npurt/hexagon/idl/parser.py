"""Parse the text of an IDL file into an `Interface`.

The grammar is that of qualcomm/QAIC, without parts that FastRPC interfaces do not use:

    file      = { include | declare } interface { include } .
    include   = "#include" ( "AEEStdDef.idl" | "remote.idl" ) .       ignored: no file is opened
    interface = "interface" NAME ":" "remote_handle64" "{" { declare | method } "}" ";" .
    declare   = ( const | typedef | enum | struct ) ";" .
    const     = "const" ( scalar | "string" | NAME ) NAME "=" [ "-" ] literal .
    literal   = INTEGER | FLOAT | TEXT | CHARACTER | NAME
    typedef   = "typedef" type NAME .
    enum      = "enum" NAME "{" NAME { "," NAME } [ "," ] "}" .
    struct    = "struct" NAME "{" { type NAME [ "[" literal "]" ] ";" } "}" .
    method    = ( "AEEResult" | "long" ) NAME "(" [ param { "," param } ] ")" ";" .
    param     = ( "in" | "rout" | "inrout" ) type NAME .
    type      = scalar | "string" | "dmahandle" | "sequence" "<" type ">" | NAME .
    scalar    = [ "u" ] "int" ( "8" | "16" | "32" | "64" ) [ "_t" ] | "char" | "octet" | "boolean"
              | "wchar" | [ "unsigned" ] ( "short" | "long" | "long" "long" ) | "float" | "double" .

A name must be declared before it is used.
"""

import math
import struct
from typing import Any, NoReturn

from npurt.hexagon.idl.lexer import IdlSource, Token
from npurt.hexagon.idl.method import FIRST, Interface, Method, Param, refusal
from npurt.hexagon.idl.types import (
    SCALARS,
    Array,
    Dma,
    Enum,
    Scalar,
    SequenceType,
    String,
    Struct,
    Type,
)

READ_OVER = ("AEEStdDef.idl", "remote.idl")
MODES = ("in", "rout", "inrout")
MAX_DEPTH = 32  # nesting of types; functions for values are recursive
MAX_SIZE = 1 << 12  # bytes of a type of fixed size; the DSP puts it on a stack of 16 KiB
C_WORDS = """auto bool break case continue default do else enum extern false for goto if inline
int register restrict return signed sizeof static struct switch true typedef union void volatile
while"""
IDL_WORDS = """AEEResult boolean char const dmahandle double float in inrout interface long
module native octet rout sequence short string unsigned wchar wstring"""
RESERVED = frozenset(f"{C_WORDS} {IDL_WORDS}".split()) | SCALARS.keys()


class IdlParser:
    """A recursive-descent parser for one file."""

    def __init__(self, source: IdlSource) -> None:
        self.source = source
        self.tokens = source.tokens()
        self.at = 0
        self.scope = ""  # prefix of the C names of declarations
        self.types: dict[str, Type] = {}  # by name in the file
        self.constants: dict[str, Any] = {}  # by name in the file
        self.c_types: dict[str, Type] = {}
        self.c_constants: dict[str, Any] = {}
        self.taken: set[str] = set()

    # --- tokens ------------------------------------------------------------------------------

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def expected(self, what: str) -> NoReturn:
        """Raise an error: the next token is not *what*."""
        found = self.token.text
        found = found if len(found) < 40 else f"{found[:36]} ..."
        self.source.refuse(self.token.offset, f"expected {what}, found {found}")

    def advance(self) -> Token:
        """Return the next token and advance."""
        token = self.token
        if token.kind != "end":
            self.at += 1
        return token

    def accept(self, text: str) -> bool:
        """Return whether the next token is *text*; advance if it is."""
        found = self.token.text == text and self.token.kind in ("name", "mark")
        if found:
            self.at += 1
        return found

    def expect(self, text: str) -> None:
        """Advance if the next token is *text*, else raise an error."""
        if not self.accept(text):
            self.expected(repr(text))

    def new_name(self, what: str, taken: set[str]) -> Token:
        """Return the next token, a new name, and add the name to *taken*."""
        token = self.token
        if token.kind != "name" or token.text in RESERVED:
            self.expected(what)
        if token.text in taken:
            self.source.refuse(
                token.offset, f"expected {what} that is new: {token.text} is declared already"
            )
        taken.add(token.text)
        return self.advance()

    def take(self, taken: set[str], offset: int, *names: str) -> None:
        """Add *names*, which the generated C uses, to *taken*; raise if a name is in it already."""
        for name in names:
            if name in taken:
                self.source.refuse(
                    offset, f"expected another name: the C of this interface uses {name} already"
                )
            taken.add(name)

    # --- declarations ------------------------------------------------------------------------

    def file(self) -> Interface:
        """Parse the whole file."""
        while not self.accept("interface"):
            if not self.include() and not self.declare():
                self.expected("a declaration or an interface")
        interface = self.interface()
        while self.include():
            pass
        if self.token.kind != "end":
            self.expected("the end of the file after its interface")
        return interface

    def include(self) -> bool:
        """Skip an include of a standard file; return whether there was one."""
        token = self.token
        if token.kind != "include":
            return False
        if not token.text.rstrip('">').endswith(tuple(f"{c}{n}" for c in '"<' for n in READ_OVER)):
            self.expected(f"#include of {' or '.join(READ_OVER)}")
        self.advance()
        return True

    def interface(self) -> Interface:
        """Parse an interface after the word interface."""
        name = self.new_name("the name of the interface", self.taken).text
        self.expect(":")
        self.expect("remote_handle64")
        self.expect("{")
        self.scope = f"{name}_"
        methods: list[Method] = []
        while not self.accept("}"):
            if not self.declare():
                methods.append(self.method(FIRST + len(methods)))
        self.expect(";")
        return Interface(name, tuple(methods), self.c_types, self.c_constants, self.version())

    def version(self) -> str:
        """Return IDL_VERSION: up to three numbers with up to three digits each."""
        text = self.constants.get("IDL_VERSION", "")
        if text:
            parts = str(text).split(".")
            if len(parts) > 3 or not all(p.isascii() and p.isdigit() and len(p) < 4 for p in parts):
                offset = self.source.text.index("IDL_VERSION")
                self.source.refuse(offset, f'expected IDL_VERSION like "1.2.3", found "{text}"')
        return str(text)

    def declare(self) -> bool:
        """Parse a declaration if the next token begins one; return whether it does."""
        readers = {
            "const": self.const,
            "typedef": self.typedef,
            "enum": self.enum,
            "struct": self.struct,
        }
        reader = readers.get(self.token.text)
        if reader is None:
            return False
        self.advance()
        reader()
        self.expect(";")
        return True

    def const(self) -> None:
        """Parse a constant."""
        kind = self.type()
        if not isinstance(kind, Scalar | String):
            self.expected("a number type or string before the name of the constant")
        name = self.new_name("the name of the constant", self.taken).text
        self.expect("=")
        offset = self.token.offset
        value = self.literal()
        if not _is_of(kind, value):
            self.source.refuse(offset, f"expected a value of the type of {name}, found {value!r}")
        self.constants[name] = self.c_constants[self.scope + name] = value

    def literal(self) -> Any:
        """Parse a literal or the name of a constant; return its value."""
        negative = self.accept("-")
        value = self.constants.get(self.token.text, self.token.value())
        if value is None or (negative and isinstance(value, str)):
            self.expected("a number, a text, or a constant declared before")
        self.advance()
        return -value if negative else value

    def typedef(self) -> None:
        """Parse a typedef."""
        offset = self.token.offset
        kind = self.type()
        name = self.new_name("the name of the type", self.taken).text
        if isinstance(kind, SequenceType) and not isinstance(kind, String) and not kind.c:
            kind = SequenceType(self.scope + name, kind.element)
        self.add_type(name, kind, offset)

    def enum(self) -> None:
        """Parse an enumeration."""
        offset = self.token.offset
        name = self.new_name("the name of the enum", self.taken).text
        self.expect("{")
        members = [self.new_name("the name of a member", self.taken).text]
        while self.accept(",") and self.token.text != "}":
            members.append(self.new_name("the name of a member", self.taken).text)
        self.expect("}")
        self.add_type(name, Enum(self.scope + name, tuple(members)), offset)

    def struct(self) -> None:
        """Parse a struct."""
        offset = self.token.offset
        name = self.new_name("the name of the struct", self.taken).text
        self.expect("{")
        members: dict[str, Type] = {}
        taken: set[str] = set()
        while not members or self.token.text != "}":
            at = self.token.offset
            kind = self.type()
            member = self.new_name("the name of the member", taken).text
            if self.accept("["):
                kind = self.array(kind)
            if isinstance(kind, Dma) or kind.nesting > 1:
                self.source.refuse(
                    at, "expected numbers, structs, strings or sequences of fixed size as member"
                )
            if isinstance(kind, SequenceType):
                self.take(taken, at, f"{member}Len")  # the member for the length in C
            self.expect(";")
            members[member] = kind
        self.expect("}")
        self.add_type(name, Struct(self.scope + name, members), offset)

    def array(self, element: Type) -> Array:
        """Parse the length of an array of *element*."""
        offset = self.token.offset
        length = self.literal()
        if not isinstance(length, int) or not 0 < length <= MAX_SIZE:
            self.source.refuse(offset, f"expected a length from 1 to {MAX_SIZE}, found {length}")
        if not element.fixed or isinstance(element, Dma):
            self.source.refuse(offset, "expected a type of fixed size before the length")
        self.expect("]")
        return Array(element, length)

    def add_type(self, name: str, kind: Type, offset: int) -> None:
        """Declare a type; raise if it is too large or nested too deeply."""
        if kind.depth > MAX_DEPTH or max(kind.given.size, kind.answer.size) > MAX_SIZE:
            self.source.refuse(
                offset, f"expected at most {MAX_DEPTH} types in types and {MAX_SIZE} bytes"
            )
        self.types[name] = self.c_types[self.scope + name] = kind

    # --- types and methods -------------------------------------------------------------------

    def type(self) -> Type:
        """Parse a type."""
        token = self.advance()
        if token.kind != "name":
            self.at -= token.kind != "end"
            self.expected("a type")
        if token.text == "sequence":
            return self.sequence()
        if token.text == "string":
            return String()
        if token.text == "dmahandle":
            return Dma()
        unsigned = token.text == "unsigned"
        word = self.advance().text if unsigned else token.text
        if word == "long" and self.accept("long"):
            word = "int64"
        if unsigned and word not in ("short", "long", "int64"):
            self.at -= 1
            self.expected("short or long")
        if unsigned:
            return SCALARS[{"short": "uint16", "long": "uint32", "int64": "uint64"}[word]]
        kind = SCALARS.get(word.removesuffix("_t")) or self.types.get(word)
        if kind is None:
            self.at -= 1
            self.expected("a type, built in or declared before")
        return kind

    def sequence(self) -> SequenceType:
        """Parse the element type of a sequence, after the word sequence."""
        self.expect("<")
        offset = self.token.offset
        if self.token.text == "sequence":
            self.expected("the name of a type: a sequence in a sequence needs a typedef")
        element = self.type()
        if isinstance(element, Dma) or element.nesting > 1:
            self.source.refuse(
                offset, "expected no dmahandle, and no third sequence, in a sequence"
            )
        self.expect(">")
        return SequenceType("", element)

    def method(self, number: int) -> Method:
        """Parse a method."""
        if not self.accept("AEEResult"):
            if self.token.text != "long":
                self.expected("AEEResult, long, a declaration or '}'")
            self.advance()
        offset = self.token.offset
        name = self.new_name("the name of the method", self.taken).text
        if name in ("open", "close", "skel_handle_invoke"):
            self.source.refuse(offset, f"expected another name: every interface has {name}")
        self.expect("(")
        params: list[Param] = []
        taken = {"h"}  # the handle comes first
        while not self.accept(")"):
            if params:
                self.expect(",")
            params.append(self.param(taken))
        self.expect(";")
        reason = refusal(tuple(params))
        if reason:
            self.source.refuse(offset, f"expected parameters that make a call: {reason}")
        return Method(name, number, tuple(params))

    def param(self, taken: set[str]) -> Param:
        """Parse a parameter."""
        if self.token.text not in MODES:
            self.expected("in, rout or inrout")
        mode = self.advance().text
        offset = self.token.offset
        kind = self.type()
        name = self.new_name("the name of the parameter", taken).text
        if isinstance(kind, SequenceType):
            self.take(taken, offset, f"{name}Len")
        if isinstance(kind, Dma):
            self.take(taken, offset, f"{name}Offset", f"{name}Len")
        return Param(name, mode, kind)


def _is_of(kind: Type, value: Any) -> bool:
    """Return whether *value* is a value of the type *kind*."""
    if isinstance(kind, String) or isinstance(value, str):
        return isinstance(kind, String) and isinstance(value, str)
    try:
        struct.pack(f"<{kind.given.format}", value)
    except (struct.error, OverflowError):
        return False
    return math.isfinite(value)


def parse(text: str, name: str = "<idl>") -> Interface:
    """Return the interface that *text* declares; error messages contain *name* as the file.

    Raises:
        NpurtError: The text violates the grammar, or its interface is impossible.
    """
    return IdlParser(IdlSource(text, name)).file()
