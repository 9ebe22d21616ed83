"""List the models on this machine: of the catalogue, of hubs and of URLs, and other files."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from npurt.base.gguf_parts import part_names
from npurt.models import catalogue
from npurt.models.hub import Hub


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model with its name for ``-m`` and its files.

    Attributes:
        source: ``catalogue``, ``hub``, ``URL`` or ``file``.
        files: The file, or all parts of a split file; empty if the model is not on this machine.
    """

    name: str
    source: str
    files: tuple[Path, ...] = ()


def stored(folders: Iterable[Path], hub: Hub | None) -> Iterator[StoredModel]:
    """Yield the models of the catalogue, then others in *folders*, then those of *hub*'s cache."""
    folders = list(folders)
    known: set[Path] = set()
    for name in catalogue.CATALOGUE:
        found = [file for folder in folders if (file := catalogue.find(name, folder))]
        known.update(file.resolve() for file in found)
        yield StoredModel(name, "catalogue", tuple(found[:1]))
    for folder in folders:
        for files in models_in(folder, "*"):
            if files[0].resolve() not in known:
                yield StoredModel(str(files[0]), "file", files)
        for files in models_in(folder, "urls/*/*"):
            yield StoredModel(str(files[0]), "URL", files)
    if hub:
        yield from _of_hub(hub)


def models_in(folder: Path, pattern: str) -> Iterator[tuple[Path, ...]]:
    """Yield the files of each complete model below *folder*, sorted by name."""
    with contextlib.suppress(OSError):  # an unreadable folder has no usable models
        for first in sorted(folder.glob(pattern)):
            names = part_names(first.name)
            if first.suffix.lower() == ".gguf" and names[0] == first.name:
                files = tuple(first.with_name(name) for name in names)
                if all(file.is_file() for file in files):
                    yield files


def _of_hub(hub: Hub) -> Iterator[StoredModel]:
    """Yield the models in the cache of *hub*, each from the newest revision that has it."""
    for folder in sorted(hub.cache.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        seen = set()
        with contextlib.suppress(OSError):
            for snapshot in sorted((folder / "snapshots").iterdir(), key=_changed, reverse=True):
                for files in models_in(snapshot, "**/*"):
                    name = files[0].relative_to(snapshot).as_posix()
                    if name not in seen:
                        seen.add(name)
                        yield StoredModel(f"hf:{repo}/{name}", "hub", files)


def _changed(path: Path) -> float:
    return path.stat().st_mtime
