"""Find the GGUF model in a folder."""

from fnmatch import fnmatch
from pathlib import Path

from npurt.errors import ModelFormatError


def model_in(folder: Path, pattern: str = "*.gguf") -> Path:
    """Return the first file of the only GGUF model in *folder* that matches *pattern*.

    Raises:
        ModelFormatError: No model matches, or several do.
    """
    names = [file.name for file in folder.glob("*.gguf") if fnmatch(file.name, pattern)]
    first = [name for name in names if "-of-" not in name or "-00001-of-" in name]
    if len(first) != 1:
        raise ModelFormatError(
            f"the folder {folder} has {len(first)} GGUF models {pattern}",
            remedy="name the file; npurt convert creates a GGUF file from safetensors",
        )
    return folder / first[0]
