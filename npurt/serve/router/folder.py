"""Find the models in a folder, and give each the name that requests use."""

from collections import Counter
from pathlib import Path
from typing import Self

from npurt.base.files import unreadable
from npurt.base.gguf_parts import model_name, part_names
from npurt.errors import NpurtError, SettingError
from npurt.llm.arch.reading import configuration
from npurt.llm.file.mapped import MappedGGUF
from npurt.llm.measure.memory import needs
from npurt.serve.front.model_file import ModelFile

# Values of general.architecture and general.type in GGUF files that are not models themselves.
# Source: llama.cpp, gguf-py/gguf/constants.py, MODEL_ARCH.MMPROJ and GGUFType.
PROJECTOR = "clip"
OTHERS = ("mmproj", "adapter", "imatrix", "vocab")


class FolderModel(ModelFile):
    """A model in a folder.

    Args:
        n_ctx: The context's size, as for `npurt.Llama`; an encoder uses its own context size.

    Attributes:
        memory: Bytes of the weights and one context.
        positions: Number of tokens in the context.
        embeds: Whether the model is an encoder, which computes embeddings only.

    Raises:
        ModelFormatError: npurt does not support the model.
    """

    def __init__(self, path: Path, name: str | None = None, n_ctx: int | None = None) -> None:
        self._n_ctx = n_ctx
        super().__init__(path, name)

    def again(self) -> Self:
        """Return the description of the file that has the path now."""
        return type(self)(self.path, self.name, self._n_ctx)

    def _read(self, file: MappedGGUF) -> None:
        kind = file.metadata.get("general.type", "model")
        if file.metadata.get("general.architecture") == PROJECTOR or kind in OTHERS:
            raise NpurtError(f"it is a {kind if kind in OTHERS else 'vision projector'}, which "
                             "only goes with a model", remedy="leave it where it is")  # fmt: skip
        super()._read(file)
        _, config = configuration(file)
        self.embeds = not config.causal
        found = needs(file, None if self.embeds else self._n_ctx)
        self.memory, self.positions = found.weights + found.kv_cache, found.positions


def scan(folder: Path, n_ctx: int | None = None) -> tuple[list[FolderModel], list[str]]:
    """Return the models in *folder* and its subfolders, and a note for each skipped file.

    A model's name is its file name without ``.gguf`` and without the part number of a split model.
    If several files have the same name, each name is the path relative to *folder*.

    Raises:
        SettingError: The folder cannot be read, or npurt supports none of its files.
    """
    models, notes = {}, []
    files = _first_files(folder)
    stems = Counter(_stem(file) for file in files)
    for file in files:
        shown = ascii(str(file.relative_to(folder)))[1:-1]
        below = file.parent.relative_to(folder) / _stem(file)
        name = _stem(file) if stems[_stem(file)] == 1 else below.as_posix()
        try:
            if not name.isprintable():  # also rejects surrogates, which encode invalid UTF-8
                raise NpurtError("its name cannot be written", remedy="rename it")
            if name in models:
                raise NpurtError(f"another file is called {name} as well", remedy="rename one")
            models[name] = FolderModel(file, name, n_ctx)
        except NpurtError as error:
            notes.append(f"{shown} is left out: {error.what}")
        except OSError as error:
            notes.append(f"{shown} is left out: {error.strerror}")
    if not models:
        raise SettingError(
            f"{folder} has no model that npurt runs" + "".join(f"\n  {note}" for note in notes),
            remedy="put GGUF files into it, or name one with -m",
        )
    return list(models.values()), notes


def _first_files(folder: Path) -> list[Path]:
    """Return all GGUF files, without later parts of a split model whose first part is present."""
    try:
        next(folder.iterdir(), None)  # raises if the folder is unreadable; rglob does not
        found = sorted(folder.rglob("*"))
    except OSError as error:
        raise SettingError(
            f"cannot read the folder {folder}: {error.strerror}", remedy=unreadable(folder, error)
        ) from error
    ggufs = [
        path for path in found
        if path.suffix.lower() == ".gguf" and not path.name.startswith(".") and path.is_file()
    ]  # fmt: skip
    there = set(ggufs)
    return [
        path for path in ggufs
        if (first := path.with_name(part_names(path.name)[0])) == path or first not in there
    ]  # fmt: skip


def _stem(file: Path) -> str:
    return Path(model_name(file.name)).stem
