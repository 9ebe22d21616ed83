"""The models in a folder, by the names that clients call them."""

from collections import Counter
from pathlib import Path

from npurt.errors import NpurtError, SettingError
from npurt.gguf_parts import model_name, part_names
from npurt.llm.arch.reading import configuration
from npurt.llm.file.mapped import MappedGGUF
from npurt.llm.measure.memory import needs
from npurt.serve.model.model_file import ModelFile

# Values of general.architecture and general.type in files that go with a model.
# Source: llama.cpp, gguf-py/gguf/constants.py, MODEL_ARCH.MMPROJ and GGUFType.
PROJECTOR = "clip"
OTHERS = ("mmproj", "adapter", "imatrix", "vocab")


class FolderModel(ModelFile):
    """A model in a folder.

    Args:
        n_ctx: As of `npurt.Llama`; an encoder has a context of its own size.

    Attributes:
        memory: Bytes that its weights and one context take.
        positions: Of that context.
        embeds: Whether it is an encoder, which embeds texts and generates none.

    Raises:
        ModelFormatError: npurt does not run it.
    """

    def __init__(self, path: Path, name: str | None = None, n_ctx: int | None = None) -> None:
        self._n_ctx = n_ctx
        super().__init__(path, name)

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
    """Return the models in *folder* and the folders in it, and a note of each file left out.

    The name of a model is that of its file without ``.gguf`` and without the number of a part.
    Where several files have that name, it is the path below *folder*.

    Raises:
        SettingError: The folder cannot be read, or npurt runs none of its files.
    """
    models, notes = {}, []
    files = _first_files(folder)
    stems = Counter(_stem(file) for file in files)
    for file in files:
        shown = ascii(str(file.relative_to(folder)))[1:-1]
        below = file.parent.relative_to(folder) / _stem(file)
        name = _stem(file) if stems[_stem(file)] == 1 else below.as_posix()
        try:
            if not name.isprintable():  # so surrogates, which stand for bytes that are no UTF-8
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
    """Return all GGUF files, without later parts of a split model whose first part is there."""
    try:
        next(folder.iterdir(), None)  # which rglob passes over where it cannot be read
        found = sorted(folder.rglob("*"))
    except OSError as error:
        raise SettingError(
            f"cannot read the folder {folder}: {error.strerror}", remedy="check the path"
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
