"""Check that all files of a split model exist and belong together.

Every part states its index, the number of parts and the total number of tensors; the first part
has all other metadata.  Source: llama.cpp tools/gguf-split and llama-model-loader.
"""

from pathlib import Path

from npurt.base.gguf_parts import MAX_PARTS, part_names
from npurt.errors import ModelFormatError
from npurt.llm.file.metadata import Metadata, optional

SHOWN = 5  # missing parts that an error names


def names(name: str, metadata: Metadata) -> list[str]:
    """Return the names of all files of the model whose first file is *name*.

    Raises:
        ModelFormatError: *name* is another part, or has no number of a part.
    """
    count = optional(metadata, "split.count", int, 1)
    if count <= 1:
        return [name]
    found = part_names(name)
    if len(found) != count:
        raise ModelFormatError(
            f"{name} is one of {count} parts of a model, but its name has no number of a part",
            remedy="restore the original names of the parts, NAME-00001-of-"
            f"{min(count, MAX_PARTS):05}.gguf and so on; npurt reads at most {MAX_PARTS} parts",
        )
    if optional(metadata, "split.no", int, 0) or found[0] != name:
        raise ModelFormatError(
            f"{name} is not the first of {count} parts of a model",
            remedy=f"pass the first part, {found[0]}, which has the metadata",
        )
    return found


def others(path: Path, metadata: Metadata) -> list[Path]:
    """Return all files of a model except the first, *path*.

    Raises:
        ModelFormatError: As `names`, or a file is missing.
    """
    files = [path.with_name(name) for name in names(path.name, metadata)]
    missing = [file.name for file in files if not file.exists()]
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise ModelFormatError(
            f"{path.name} is the first of {len(files)} parts of a model; these parts are missing: "
            f"{', '.join(missing[:SHOWN])}{more}",
            remedy=f"download the missing parts into {path.parent}",
        )
    return files[1:]


def check(name: str, metadata: Metadata, index: int, first: Metadata) -> None:
    """Raise an error unless the file *name* is part *index* of the model.

    Args:
        metadata: The metadata of the file.
        first: The metadata of the first file.

    Raises:
        ModelFormatError: *metadata* states another index, number of parts or number of tensors.
    """
    count, total = first["split.count"], first.get("split.tensors.count")
    wanted = {"split.no": index, "split.count": count, "split.tensors.count": total}
    for key, expected in wanted.items():
        if metadata.get(key) != expected:
            raise ModelFormatError(
                f"{name} is not part {index + 1} of the model: {key} is "
                f"{metadata.get(key)!r:.40}, not {expected!r:.40}",
                remedy="download all parts again from the same source",
            )


def check_total(name: str, metadata: Metadata, found: int) -> None:
    """Raise an error unless the metadata specify *found* tensors in all files of the model.

    Raises:
        ModelFormatError: The metadata specify another number.
    """
    expected = optional(metadata, "split.tensors.count", int, found)
    if found != expected:
        raise ModelFormatError(
            f"{name}: the model has {found} tensors, but its metadata specify {expected}",
            remedy="download all parts of the model again",
        )
