"""Generate the C that checks the buffers of a call on the DSP and calls the implementation.

The checks are those in the skels of qualcomm/QAIC (src/Language/SO/Pack.hs, ToCSkel.hs), and two
more: buffers must be aligned, and a call must have no further buffers.  The C needs no library.
"""

from collections.abc import Iterator

from npurt.hexagon.idl.method import ESCAPE, Interface, Method, Param
from npurt.hexagon.idl.types import COUNT, Dma, Scalar, SequenceType, String, Struct, Type, place

# Error codes are those of AEEStdErr.h plus 0x80000400, as for all errors from the DSP.
SUPPORT = """\
/* Generated from the interface {name} by npurt.hexagon.idl.  Do not edit. */
#include "{name}.h"

enum {{
    AEE_EUNSUPPORTED = (int) 0x80000414,
    AEE_EBADPARM = (int) 0x8000040e,
    AEE_ENOMEMORY = (int) 0x80000402,
    AEE_EBADMEMALIGN = (int) 0x80000455,
    AEE_ESTUBSKELVERMISMATCH = (int) 0x80000594,
}};

#define MOST_STACK 8192u /* bytes of an array of elements that are not of fixed size */
#define HELPER static inline __attribute__((unused))

typedef struct {{
    const remote_arg *next, *end;
}} queue;

/* The state of a call: the buffers that are not used yet, and the first error. */
typedef struct {{
    queue in, out;
    int error;
}} walk;

HELPER void copy(void *to, const void *from, size_t n)
{{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *) to)[i] = ((const uint8_t *) from)[i];
}}

HELPER void clear(void *to, size_t n)
{{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *) to)[i] = 0;
}}

HELPER void fail(walk *w, int error)
{{
    if (!w->error)
        w->error = error;
}}

/* Return the next buffer, which must hold count elements; NULL and an error if there is none. */
HELPER void *take(walk *w, queue *q, uint64_t count, size_t size, size_t align)
{{
    if (w->error || q->next == q->end) {{
        fail(w, AEE_EBADPARM);
        return NULL;
    }}
    const remote_buf buf = (q->next++)->buf;
    if (buf.nLen < count * size || (count && !buf.pv))
        fail(w, AEE_EBADPARM);
    else if ((uintptr_t) buf.pv & (align - 1))
        fail(w, AEE_EBADMEMALIGN);
    return w->error ? NULL : buf.pv;
}}

HELPER int count_at(walk *w, const uint8_t *at)
{{
    uint32_t n;
    copy(&n, at, sizeof n);
    if (n > INT32_MAX)
        fail(w, AEE_EBADPARM);
    return w->error ? 0 : (int) n;
}}

HELPER void *sequence(walk *w, queue *q, const uint8_t *at, size_t size, size_t align, int *len)
{{
    *len = count_at(w, at);
    return take(w, q, (uint64_t) *len, size, align);
}}

HELPER char *string(walk *w, const uint8_t *at, int *len)
{{
    char *text = sequence(w, &w->in, at, 1, 1, len);
    if (!w->error && (*len == 0 || text[*len - 1] != 0))
        fail(w, AEE_EBADPARM);
    return text;
}}

/* For inrout: copy the input to the buffer of the answer. */
HELPER void *in_place(walk *w, const void *from, int n, void *to, int room, size_t size)
{{
    if (room < n)
        fail(w, AEE_EBADPARM);
    if (!w->error)
        copy(to, from, (size_t) n * size);
    return to;
}}

/* Return the number of elements of an array on the stack. */
HELPER int elements(walk *w, const uint8_t *at, size_t size)
{{
    const int n = count_at(w, at);
    if ((uint64_t) n * size > MOST_STACK)
        fail(w, AEE_ENOMEMORY);
    return w->error ? 0 : n;
}}

HELPER int finished(walk *w)
{{
    if (w->in.next != w->in.end || w->out.next != w->out.end)
        fail(w, AEE_EBADPARM);
    return w->error;
}}
"""

VERSION = """
/* Return the version in a URI, such as _idlver=1.2.3, as a number; -1 if there is none. */
static int version_of(const char *uri)
{
    static const char key[] = "_idlver=";
    size_t same = 0;
    for (; *uri && key[same]; uri++)
        same = *uri == key[same] ? same + 1 : *uri == key[0];
    if (key[same] || *uri < '0' || *uri > '9')
        return -1;
    int version = 0;
    for (int part = 0; part < 3; part++) {
        int number = 0;
        for (int digits = 0; *uri >= '0' && *uri <= '9' && digits < 3; digits++)
            number = number * 10 + (*uri++ - '0');
        version = version * 1000 + number;
        if (*uri == '.' && part < 2)
            uri++;
    }
    return *uri == 0 || *uri == '&' ? version : -1;
}
"""

OPEN = """
static int call_open(uint32_t sc, walk *w, remote_arg *args)
{{
    const uint8_t *sent = take(w, &w->in, 1, 4, 1);
    if (w->error || (sc & 0xff) != 0x01)
        return AEE_EBADPARM;
    int uri_len;
    const char *uri = string(w, sent, &uri_len);
    if (finished(w))
        return w->error;
{check}    remote_handle64 opened = 0;
    const int error = {name}_open(uri, &opened);
    if (!error)
        args[2].h64 = opened;
    return error;
}}

static int call_close(uint32_t sc, walk *w, const remote_arg *args)
{{
    if ((sc & 0xff) != 0x10 || finished(w))
        return AEE_EBADPARM;
    return {name}_close(args[0].h64);
}}
"""

CHECK = """\
    const int version = version_of(uri);
    if (version < 0 || version > {number}) /* {version} */
        return AEE_ESTUBSKELVERMISMATCH;
"""

INVOKE = """
__attribute__((visibility("default"))) int
{name}_skel_handle_invoke(remote_handle64 h, uint32_t sc, remote_arg *args)
{{
    const remote_arg *out = args + (sc >> 16 & 0xff);
    const remote_arg *handles = out + (sc >> 8 & 0xff);
    walk w = {{{{args, out}}, {{out, handles}}, 0}};
    uint32_t id = sc >> 24 & 0x1f;
{escape}    switch (id) {{
    case 0:
        return call_open(sc, &w, args);
    case 1:
        return call_close(sc, &w, args);
{cases}
    default:
        return AEE_EUNSUPPORTED;
    }}
}}
"""

# Ids from 31 on are in the first word of the first buffer.
ESCAPED = """\
    if (id == 31) {
        queue first = w.in;
        const uint8_t *sent = take(&w, &first, 1, 4, 1);
        if (w.error)
            return w.error;
        copy(&id, sent, sizeof id);
        if (id < 31)
            return AEE_EUNSUPPORTED;
    }
"""


def skel(interface: Interface) -> str:
    """Return the text of the C file."""
    name = interface.name
    text = SUPPORT.format(name=name)
    if any(isinstance(p.type, Dma) for m in interface.methods for p in m.params):
        text += "\nint adsp_mmap_fd_getinfo(int fd, uint32_t *len); /* of the DSP's runtime */\n"
    check = ""
    if interface.version:
        parts = [int(p) for p in interface.version.split(".")] + [0, 0]
        number = parts[0] * 1_000_000 + parts[1] * 1000 + parts[2]
        check = CHECK.format(number=number, version=interface.version)
        text += VERSION
    text += OPEN.format(name=name, check=check)
    for method in interface.methods:
        text += "\n" + "\n".join(_method(name, method)) + "\n"
    cases = [
        f"    case {m.id}:\n        return call_{m.name}(h, sc, &w, handles);"
        for m in interface.methods
    ]
    escape = ESCAPED if any(m.id >= ESCAPE for m in interface.methods) else ""
    return text + INVOKE.format(name=name, escape=escape, cases="\n".join(cases))


def _method(interface: str, method: Method) -> list[str]:
    """Return the lines of the function that unpacks and makes a call of *method*."""
    body = _Body()
    body.blocks(method)
    sent = iter(method.sent_offsets[method.escaped :])
    answers = iter(method.answer_offsets)
    for i, param in enumerate(method.params):
        body.param(f"v{i}", param, sent, answers)
    handles = sum(isinstance(p.type, Dma) << (4 if p.mode == "in" else 0) for p in method.params)
    arguments = ", ".join(["h", *body.arguments])
    unused = [] if body.handles["in"] + body.handles["rout"] else ["    (void) handles;"]
    after = ["    if (error)", "        return error;", *body.after] if body.after else []
    return [
        f"static int call_{method.name}(remote_handle64 h, uint32_t sc, walk *w, "
        "const remote_arg *handles)",
        "{",
        *unused,
        f"    if ((sc & 0xff) != {handles:#04x})",
        "        return AEE_EBADPARM;",
        *body.before,
        "    if (finished(w))",
        "        return w->error;",
        f"    const int error = {interface}_{method.name}({arguments});",
        *after,
        "    return error;",
        "}",
    ]


class _Body:
    """The arguments of the call of an implementation, and the statements before and after it."""

    def __init__(self) -> None:
        self.before: list[str] = []
        self.after: list[str] = []
        self.arguments: list[str] = []
        self.handles = {"in": 0, "rout": 0}

    def blocks(self, method: Method) -> None:
        """Take the two blocks; they need no alignment, because the C copies their values."""
        if method.sent.size:
            only_id = method.sent.size == COUNT.size * method.escaped
            sent = "" if only_id else "const uint8_t *sent = "
            self.before.append(f"    {sent}take(w, &w->in, 1, {method.sent.size}, 1);")
        if method.answer.size:
            size = method.answer.size
            self.before.append(f"    uint8_t *answer = take(w, &w->out, 1, {size}, 1);")
        self.before += ["    if (w->error)", "        return w->error;"]

    def param(self, v: str, param: Param, sent: Iterator[int], answers: Iterator[int]) -> None:
        """Unpack one parameter into the variable *v*, and pack it after the call."""
        kind = param.type
        if isinstance(kind, Dma):
            self.dma(v, param.mode, sent)
            return
        given = next(sent) if param.goes_in else None
        capacity = next(sent) if param.comes_out else 0
        answer = next(answers) if param.comes_out else 0
        if isinstance(kind, SequenceType) and not kind.element.fixed:
            self.nested(v, kind, param, capacity if given is None else given, answer)
            return
        if isinstance(kind, SequenceType):
            self.before += [f"    {kind.element.c} *{v};", f"    int {v}Len;"]
        else:
            self.before.append(f"    {kind.c} {v};")
        if given is not None and param.comes_out and isinstance(kind, SequenceType):
            self.inrout(v, kind, given, capacity)
        elif given is not None:
            self.give(v, kind, "sent", given)
        else:
            self.reserve(v, kind, "sent", capacity)
        if param.comes_out:
            self.answer(v, kind, "answer", answer)
        self.add_argument(v, kind, param)

    def add_argument(self, v: str, kind: Type, param: Param) -> None:
        """Pass the variable *v* to the implementation."""
        if isinstance(kind, String) and param.mode == "in":
            self.arguments.append(v)
        elif isinstance(kind, SequenceType):
            self.arguments += [v, f"{v}Len"]
        else:
            by_value = isinstance(kind, Scalar) and param.mode == "in"
            self.arguments.append(v if by_value else f"&{v}")

    def dma(self, v: str, mode: str, sent: Iterator[int]) -> None:
        """Take a handle; the DSP's runtime returns its length."""
        if mode == "in":
            next(sent)
        skipped = "(sc >> 4 & 0xf) + " if mode == "rout" else ""
        at = f"handles[{skipped}{self.handles[mode]}].dma"
        self.handles[mode] += 1
        self.before += [
            f"    uint32_t {v}Len = 0;",
            f"    if (adsp_mmap_fd_getinfo({at}.fd, &{v}Len))",
            "        fail(w, AEE_EBADPARM);",
        ]
        self.arguments += [f"{at}.fd", f"{at}.offset", f"{v}Len"]

    def inrout(self, v: str, kind: SequenceType, given: int, capacity: int) -> None:
        """Take both buffers, and copy the input to the buffer of the result."""
        size = kind.element.given.size
        self.before += [f"    {kind.element.c} *{v}In;", f"    int {v}InLen;"]
        self.give(f"{v}In", kind, "sent", given)
        self.reserve(v, kind, "sent", capacity)
        self.before.append(f"    {v} = in_place(w, {v}In, {v}InLen, {v}, {v}Len, {size});")

    def nested(self, v: str, kind: SequenceType, param: Param, counts: int, answer: int) -> None:
        """Unpack a sequence of sequences, of strings, or of structs with such members."""
        element, c = kind.element, kind.element.c
        part = element.given if param.goes_in else element.capacity
        self.before += [
            f"    const int {v}Len = elements(w, sent + {counts}, sizeof({c}));",
            f"    const uint8_t *{v}Sent = take(w, &w->in, {v}Len, {part.size}, 1);",
        ]
        if param.comes_out and element.answer.size:
            size = element.answer.size
            self.before.append(f"    uint8_t *{v}Answer = take(w, &w->out, {v}Len, {size}, 1);")
        self.before += [
            "    if (w->error)",
            "        return w->error;",
            f"    {c} {v}[{v}Len + 1];",
            f"    for (int i = 0; i < {v}Len; i++) {{",
        ]
        data = f"{v}[i].data" if isinstance(element, SequenceType) else f"{v}[i]"
        fill = self.give if param.goes_in else self.reserve
        first = len(self.before)
        fill(data, element, f"{v}Sent + i * {part.size}", 0)
        self.before[first:] = [*(f"    {line}" for line in self.before[first:]), "    }"]
        if param.comes_out and element.answer.size:
            self.after.append(f"    for (int i = 0; i < {v}Len; i++) {{")
            first = len(self.after)
            self.answer(data, element, f"{v}Answer + i * {element.answer.size}", 0)
            self.after[first:] = [*(f"    {line}" for line in self.after[first:]), "    }"]
        self.arguments += [v, f"{v}Len"]

    def give(self, v: str, kind: Type, block: str, offset: int) -> None:
        """Set *v* to the value in a block and in buffers."""
        if isinstance(kind, String):
            self.before.append(f"    {v} = string(w, {block} + {offset}, &{v}Len);")
        elif isinstance(kind, SequenceType):
            self.buffer(v, kind, "in", block, offset)
        elif isinstance(kind, Struct) and not kind.fixed:
            offsets, _ = place(m.given for m in kind.members.values())
            for (name, member), at in zip(kind.members.items(), offsets, strict=True):
                self.give(f"{v}.{name}", member, block, offset + at)
        else:
            self.before.append(f"    copy(&{v}, {block} + {offset}, sizeof {v});")

    def reserve(self, v: str, kind: Type, block: str, offset: int) -> None:
        """Set the sequences in *v* to the buffers of results, and all other members to 0."""
        if isinstance(kind, SequenceType):
            self.buffer(v, kind, "out", block, offset)
        elif isinstance(kind, Struct) and not kind.fixed:
            offsets, _ = place(m.capacity for m in kind.members.values())
            for (name, member), at in zip(kind.members.items(), offsets, strict=True):
                self.reserve(f"{v}.{name}", member, block, offset + at)
        else:
            self.before.append(f"    clear(&{v}, sizeof {v});")

    def buffer(self, v: str, kind: SequenceType, queue: str, block: str, offset: int) -> None:
        """Set *v* to the buffer of a sequence with elements of fixed size."""
        part = kind.element.given
        self.before.append(
            f"    {v} = sequence(w, &w->{queue}, {block} + {offset}, "
            f"{part.size}, {part.align}, &{v}Len);"
        )

    def answer(self, v: str, kind: Type, block: str, offset: int) -> None:
        """Copy the members of fixed size in *v* to a block."""
        if isinstance(kind, Struct) and not kind.fixed:
            offsets, _ = place(m.answer for m in kind.members.values())
            for (name, member), at in zip(kind.members.items(), offsets, strict=True):
                self.answer(f"{v}.{name}", member, block, offset + at)
        elif not isinstance(kind, SequenceType):
            self.after.append(f"    copy({block} + {offset}, &{v}, sizeof {v});")
