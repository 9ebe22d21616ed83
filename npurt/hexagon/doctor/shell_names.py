"""The names that an unsigned process on the DSP offers to a skel, by version of the DSP.

shell_names.tsv is the only list of these names: the simulated shell, `loadable.verify` and the
tests use it.  Its head states its source.
"""

import functools
from importlib.resources import files

LISTED = (68, 73, 75, 79, 81, 85)  # versions with a known shell


@functools.cache
def table() -> dict[str, frozenset[int]]:
    """Return every name with the versions in `LISTED` whose shells export it."""
    return {row[0]: _versions(row[1]) for row in _rows()}


@functools.cache
def headers() -> dict[str, str]:
    """Return every name with the public header, standard or source that declares it."""
    return {row[0]: row[2] for row in _rows()}


@functools.cache
def objects() -> frozenset[str]:
    """Return the names that stand for data and not for a function."""
    return frozenset(row[0] for row in _rows() if row[3:] == ["data"])


@functools.cache
def _rows() -> list[list[str]]:
    text = (files(__package__) / "shell_names.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines() if not line.startswith("#")]


def _versions(text: str) -> frozenset[int]:
    if text == "all":
        return frozenset(LISTED)
    return frozenset(int(version.removeprefix("v")) for version in text.split())


@functools.cache
def exported(arch: int) -> frozenset[str]:
    """Return the names that shells for v*arch* export.

    No shell of v69 or of a version between two listed ones is known: the result has the names of
    both neighbours.  A version older or newer than all listed ones has the names of the nearest.
    """
    below = max((v for v in LISTED if v <= arch), default=LISTED[0])
    above = min((v for v in LISTED if v >= arch), default=LISTED[-1])
    return frozenset(name for name, versions in table().items() if {below, above} <= versions)
