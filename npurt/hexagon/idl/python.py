"""Write an interface as Python code, so that opening a device does not parse its IDL."""

from npurt.hexagon.idl.method import Interface
from npurt.hexagon.idl.types import Array, Dma, Enum, Scalar, SequenceType, String, Struct, Type

HEADER = '''"""The interface {name}, compiled from its IDL by the build; see `npurt.hexagon.idl`."""

from npurt.hexagon.idl.method import Interface, Method, Param
from npurt.hexagon.idl.types import Array, Dma, Enum, Scalar, SequenceType, String, Struct

'''


class _Types:
    """The lines that make the types of an interface; a type that is used twice is made once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[int, str] = {}

    def name(self, kind: Type) -> str:
        """Return the variable of *kind*, and add the lines that it needs."""
        if id(kind) not in self._names:
            line = self._call(kind)  # adds the lines of its members first
            self._names[id(kind)] = f"t{len(self._names)}"
            self.lines.append(f"{self._names[id(kind)]} = {line}")
        return self._names[id(kind)]

    def _call(self, kind: Type) -> str:
        match kind:
            case String() | Dma():
                return f"{type(kind).__name__}()"
            case Enum():
                return f"Enum({kind.c!r}, {kind.members!r})"
            case Scalar():
                return f"Scalar({kind.c!r}, {kind.given.format!r})"
            case Array():
                return f"Array({self.name(kind.element)}, {kind.length})"
            case SequenceType():
                return f"SequenceType({kind.c!r}, {self.name(kind.element)})"
            case Struct():
                members = ", ".join(f"{k!r}: {self.name(v)}" for k, v in kind.members.items())
                return f"Struct({kind.c!r}, {{{members}}})"
        raise AssertionError(f"{kind} is no type of `npurt.hexagon.idl.types`")


def python(interface: Interface) -> str:
    """Return Python code that sets ``INTERFACE`` to a copy of *interface*."""
    types, methods = _Types(), []
    for method in interface.methods:
        params = [f"Param({p.name!r}, {p.mode!r}, {types.name(p.type)})," for p in method.params]
        methods.append(f"    Method({method.name!r}, {method.id}, ({' '.join(params)})),\n")
    declared = ", ".join(f"{name!r}: {types.name(t)}" for name, t in interface.types.items())
    return (
        HEADER.format(name=interface.name)
        + "".join(f"{line}\n" for line in types.lines)
        + f"methods = (\n{''.join(methods)})\n"
        + f"INTERFACE = Interface({interface.name!r}, methods, {{{declared}}}, "
        + f"{dict(interface.constants)!r}, {interface.version!r})\n"
    )
