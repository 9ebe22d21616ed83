"""Check that the files of a split model are there and belong together.

Every part states its index, the number of parts and the number of tensors in all of them; the
first has the rest of the metadata.  Source: llama.cpp tools/gguf-split and llama-model-loader.
"""

from pathlib import Path

from npurt.errors import ModelFormatError
from npurt.gguf_parts import MAX_PARTS, part_names
from npurt.llm.file.metadata import Metadata, optional

SHOWN = 5  # missing parts that an error names


def names(name: str, metadata: Metadata) -> list[str]:
    """Return the names of all files of a model, of which the file *name* is the first.

    Raises:
        ModelFormatError: It is another part, or has no part's name.
    """
    count = optional(metadata, "split.count", int, 1)
    if count <= 1:
        return [name]
    found = part_names(name)
    if len(found) != count:
        raise ModelFormatError(
            f"{name} is one of {count} parts of a model, and its name does not say which",
            remedy="give the parts the names they had, NAME-00001-of-"
            f"{min(count, MAX_PARTS):05}.gguf and so on, at most {MAX_PARTS}",
        )
    if optional(metadata, "split.no", int, 0) or found[0] != name:
        raise ModelFormatError(
            f"{name} is not the first of {count} parts of a model",
            remedy=f"pass the first one, {found[0]}: it has the metadata",
        )
    return found


def others(path: Path, metadata: Metadata) -> list[Path]:
    """Return the files that a model has besides the first, which is *path*.

    Raises:
        ModelFormatError: As `names`, or a file is missing.
    """
    files = [path.with_name(name) for name in names(path.name, metadata)]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise ModelFormatError(
            f"{path.name} is the first of {len(files)} parts of a model, and not all are there; "
            f"missing: {', '.join(missing[:SHOWN])}{more}",
            remedy=f"download what is missing into {path.parent}",
        )
    return files[1:]


def check(name: str, metadata: Metadata, index: int, first: Metadata) -> None:
    """Refuse the file *name* unless it says that it is part *index* of the model of *first*.

    Raises:
        ModelFormatError: It says something else.
    """
    count, total = first["split.count"], first.get("split.tensors.count")
    wanted = {"split.no": index, "split.count": count, "split.tensors.count": total}
    for key, expected in wanted.items():
        if metadata.get(key) != expected:
            raise ModelFormatError(
                f"{name} is not part {index + 1} of the model: {key} is "
                f"{metadata.get(key)!r:.40}, not {expected!r:.40}",
                remedy="download the parts again, all from one place",
            )


def check_total(name: str, metadata: Metadata, found: int) -> None:
    """Refuse a model of which *found* tensors were found and another number was promised.

    Raises:
        ModelFormatError: That is so.
    """
    expected = optional(metadata, "split.tensors.count", int, found)
    if found != expected:
        raise ModelFormatError(
            f"{name}: the model has {found} tensors, not the {expected} that it states",
            remedy="download all of its parts again",
        )
