"""Read the pooling of an embedding model from the file that sentence-transformers saves.

Source: sentence-transformers models/Pooling.py, Apache-2.0 (names in the file).
"""

from pathlib import Path

from npurt.errors import ModelFormatError
from npurt.llm.convert.checkpoint.settings import read_json
from npurt.llm.file.pooling import NUMBERS, Pooling

FILE = "1_Pooling/config.json"
MODES = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_lasttoken": Pooling.LAST,
}


def pooling_of(folder: Path, arch: str) -> dict[str, int]:
    """Return the metadata key of the pooling, or {} if the folder does not name a pooling.

    Raises:
        ModelFormatError: GGUF has no value for this pooling.
    """
    modes = [key for key, value in read_json(folder / FILE).items()
             if key.startswith("pooling_mode_") and value is True]  # fmt: skip
    if not modes:
        return {}
    if len(modes) > 1 or modes[0] not in MODES:
        raise ModelFormatError(
            f"{FILE} says {' and '.join(modes):.80}, which GGUF cannot express",
            remedy=f"use a model with one of {', '.join(MODES)}",
        )
    numbers = {pooling: number for number, pooling in NUMBERS.items()}
    return {f"{arch}.pooling_type": numbers[MODES[modes[0]]]}
