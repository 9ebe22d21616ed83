"""Keep old names of modules and attributes usable, with a DeprecationWarning."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Moved:
    """Finds a module by its old name, and fills it with the contents of the renamed module.

    This class is a finder and a loader.  It has no base class because importing the abstract base
    classes of importlib takes 19 ms.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        return ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        del spec
        return None  # Python then makes an ordinary module

    def exec_module(self, module: ModuleType) -> None:
        new = self._names[module.__name__]
        warn(module.__name__, new)
        there = vars(import_module(new))
        vars(module).update({k: v for k, v in there.items() if not k.startswith("__")})


def modules(names: Mapping[str, str]) -> None:
    """Make old names of modules importable: *names* maps each old name to the new one."""
    sys.meta_path.append(_Moved(names))


def attributes(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for *package* that finds names which moved to other modules.

    *names* maps each name to its new module, followed by a colon and the new name if it changed.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, renamed = names[name].partition(":")
        warn(f"{package}.{name}", f"{module}.{renamed or name}")
        return getattr(import_module(module), renamed or name)

    return find


def attribute(new: str) -> Any:
    """Return a property that warns and returns the attribute *new* of its object."""

    class Renamed(property):
        def __set_name__(self, owner: type, name: str) -> None:
            self.old = f"{owner.__name__}.{name}"

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            warn(self.old, f"{self.old.rpartition('.')[0]}.{new}")
            return getattr(instance, new)

    return Renamed()


def warn(old: str, new: str, *, between: int = 0) -> None:
    """Warn that *old* is now called *new*; the warning points to the caller's caller.

    Args:
        between: Additional frames of npurt between this function and the user's code.
    """
    warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=3 + between)
