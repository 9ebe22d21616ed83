"""Choose the file of a hub repository for a reference."""

import difflib
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from npurt.base.gguf_parts import part_names
from npurt.errors import SettingError
from npurt.models.reference import Reference

USUAL_QUANTS = ("Q4_K_M", "Q8_0")  # tried in this order if the reference has none
NO_MODEL = (
    "mmproj",
    "imatrix",
    "mtp-",
    "eagle3-",
    "dflash-",
    "dspark-",
)  # parts of names of files that are no models
LISTED = 12  # largest number of files that an error message lists
SUGGESTIONS = 3


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository, with its hash, which is its name in the cache."""

    name: str
    nbytes: int
    digest: str


def choose(files: Sequence[HubFile], wanted: Reference) -> list[HubFile]:
    """Return the file for *wanted*; if it is split, all its parts in order.

    Raises:
        SettingError: The repository has no such file, or parts of it are missing.
    """
    by_name = {file.name: file for file in files}
    chosen = _chosen(list(by_name), wanted)
    if chosen is None:
        asked = wanted.file or wanted.quant
        near = difflib.get_close_matches(asked or "", by_name, SUGGESTIONS, cutoff=0.4)
        names = near if wanted.file and near else list(by_name)
        more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
        raise SettingError(
            f"{wanted.repo} has no GGUF file" + (f" for {asked}" if asked else ""),
            remedy=f"choose one of its files: {', '.join(names[:LISTED])}{more}"
            if names
            else "choose a repository with GGUF files; their names often end in -GGUF",
        )
    folder = PurePosixPath(chosen).parent
    names = [str(folder / name) for name in part_names(PurePosixPath(chosen).name)]
    missing = [name for name in names if name not in by_name]
    if missing:
        raise SettingError(
            f"{wanted.repo} lacks {', '.join(missing[:SUGGESTIONS])}, a part of {chosen}",
            remedy="choose another file, or another repository",
        )
    return [by_name[name] for name in names]


def _chosen(names: list[str], wanted: Reference) -> str | None:
    if wanted.file:
        low = wanted.file.lower()
        exact = [name for name in names if name.lower() == low]
        return next(iter(exact or fnmatch.filter(names, wanted.file)), None)
    models = [
        name
        for name in names
        if not any(word in PurePosixPath(name).name for word in NO_MODEL)
        and part_names(PurePosixPath(name).name)[0] == PurePosixPath(name).name
    ]
    for quant in (wanted.quant,) if wanted.quant else USUAL_QUANTS:
        for name in models:
            if has_quant(name, quant):
                return name
    return models[0] if models and not wanted.quant else None


def has_quant(name: str, quant: str) -> bool:
    """Return whether the file name has *quant* as a whole word: F16 does not match BF16."""
    return bool(re.search(rf"(?<![a-z0-9]){re.escape(quant)}[.-]", name, re.IGNORECASE))
