"""Generate the C header of an interface: constants, types and prototypes.

Names and prototypes are those of qualcomm/QAIC (src/Language/SO/ToHeader.hs), so code written for
QAIC's headers compiles.  A sequence is passed as a pointer and a length, a struct as a pointer.  If
the element of a sequence is itself a sequence, it is a struct with the members data and dataLen.
"""

from typing import Any

from npurt.hexagon.idl.method import Interface, Method, Param
from npurt.hexagon.idl.types import Array, Dma, Enum, SequenceType, String, Struct, Type

TOP = """\
/* Generated from the interface {name} by npurt.hexagon.idl.  Do not edit. */
#ifndef {name}_IDL_H
#define {name}_IDL_H

#include <stddef.h>
#include <stdint.h>

#ifndef FASTRPC_REMOTE_ARG /* facts: qualcomm/fastrpc inc/remote.h */
#define FASTRPC_REMOTE_ARG
typedef uint64_t remote_handle64;
typedef struct {{
    void *pv;
    size_t nLen;
}} remote_buf;
typedef struct {{
    int32_t fd;
    uint32_t offset;
}} remote_dma_handle;
typedef union {{
    remote_buf buf;
    uint32_t h;
    remote_handle64 h64;
    remote_dma_handle dma;
}} remote_arg;
typedef struct {{
    char *data;
    int dataLen;
}} _cstring1_t;
#endif

#define {name}_URI {uri}
"""


def header(interface: Interface) -> str:
    """Return the text of the header."""
    name = interface.name
    lines = [TOP.format(name=name, uri=literal(interface.uri))]
    lines += [f"#define {c} {literal(value)}" for c, value in interface.constants.items()]
    for c, kind in interface.types.items():
        lines += ["", *_declaration(c, kind)]
    lines += [
        "",
        "/* What the implementation defines.  Each returns 0, or what the caller gets instead. */",
        f"int {name}_open(const char *uri, remote_handle64 *h);",
        f"int {name}_close(remote_handle64 h);",
        *(f"{prototype(name, method)};" for method in interface.methods),
        "",
        "/* What FastRPC calls. */",
        f"int {name}_skel_handle_invoke(remote_handle64 h, uint32_t sc, remote_arg *args);",
        "",
        "#endif",
    ]
    return "\n".join(lines) + "\n"


def prototype(interface: str, method: Method) -> str:
    """Return the prototype of the implementation of *method*."""
    params = ["remote_handle64 h"]
    for param in method.params:
        params += _params(param)
    return f"int {interface}_{method.name}({', '.join(params)})"


def _params(param: Param) -> list[str]:
    name, kind = param.name, param.type
    const = "const " if param.mode == "in" else ""
    if isinstance(kind, Dma):
        return [f"int {name}", f"uint32_t {name}Offset", f"uint32_t {name}Len"]
    if isinstance(kind, String) and param.mode == "in":
        return [f"const char *{name}"]
    if isinstance(kind, SequenceType):
        return [f"{const}{kind.element.c} *{name}", f"int {name}Len"]
    if isinstance(kind, Struct) or param.mode != "in":
        return [f"{const}{kind.c} *{name}"]
    return [f"{kind.c} {name}"]


def _declaration(c: str, kind: Type) -> list[str]:
    if isinstance(kind, Dma):
        return []
    if kind.c != c:
        return [f"typedef {kind.c} {c};"]
    if isinstance(kind, Enum):
        members = [*kind.members, f"_32BIT_PLACEHOLDER_{c} = 0x7fffffff"]
        return ["typedef enum {", *(f"    {m}," for m in members), f"}} {c};"]
    if isinstance(kind, Struct):
        fields = [line for name, member in kind.members.items() for line in _field(name, member)]
        size = kind.given.size
        check = f'_Static_assert(sizeof({c}) == {size}, "as on the wire");'
        return ["typedef struct {", *fields, f"}} {c};", *([check] if kind.fixed else [])]
    assert isinstance(kind, SequenceType)
    return ["typedef struct {", *_field("data", kind), f"}} {c};"]


def _field(name: str, kind: Type) -> list[str]:
    if isinstance(kind, Array):
        return [f"    {kind.element.c} {name}[{kind.length}];"]
    if isinstance(kind, SequenceType):
        return [f"    {kind.element.c} *{name};", f"    int {name}Len;"]
    return [f"    {kind.c} {name};"]


def literal(value: Any) -> str:
    """Return *value* as a C literal."""
    if isinstance(value, str):
        plain = set(range(32, 127)) - set(b'"\\')
        text = "".join(chr(b) if b in plain else f"\\{b:03o}" for b in value.encode())
        return '"' + text.replace("??", "?\\077") + '"'  # no trigraphs
    if isinstance(value, float) or -(1 << 31) < value < 1 << 31:
        return f"({value!r})" if value < 0 else repr(value)
    return f"({value + 1}ll - 1)" if value < 0 else f"{value}ull"
