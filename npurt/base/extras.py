"""The packages of npurt's extras, and the command that installs them.

npurt is not on a package index, so an error about a missing package names the packages themselves.
"""

import contextlib
import re
from importlib.metadata import PackageNotFoundError, requires


def command(extra: str) -> str:
    """Return the command that installs the packages of *extra*."""
    try:
        packages = sorted(_packages(extra))
    except PackageNotFoundError:  # a checkout that is only on the path
        return f"pip install '.[{extra}]' in the checkout of npurt"
    return f"pip install {' '.join(map(repr, packages))}"


def requirement(module: str) -> str:
    """Return the requirement of npurt that installs *module*; else the module's name."""

    def plain(name: str) -> str:
        return re.split(r"[^\w.-]", name)[0].replace("_", "-").lower()

    with contextlib.suppress(PackageNotFoundError):
        for line in requires("npurt") or ():
            if plain(line) == plain(module):
                return line.partition(";")[0].strip()
    return module


def _packages(extra: str) -> set[str]:
    found = set()
    for line in requires("npurt") or ():
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        if re.search(rf"extra == ['\"]{extra}['\"]", marker):
            of_npurt = re.fullmatch(r"npurt\[(.+)\]", requirement)
            names = of_npurt[1].split(",") if of_npurt else ()
            found |= set().union(*map(_packages, names)) if of_npurt else {requirement}
    return found
