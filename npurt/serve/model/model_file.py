"""A model by the header of its file: what lists say of it, without its tokenizer and weights."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npurt.llm.file.mapped import MappedGGUF, errors_of
from npurt.llm.file.metadata import optional
from npurt.llm.text import named_templates
from npurt.llm.text.vocabulary import token_texts
from npurt.version import __version__


class ModelFile:
    """A model by its file.

    Args:
        path: The file; of a model that is split, the first.
        name: What clients call it; by default the file's name without its ending.
        template: As *chat_template* of `Llama`.

    Attributes:
        metadata: What the header says, in texts and whole numbers.
        n_vocab: Tokens of the vocabulary.
        nbytes: Of all its files.
        created: When the file was written, in seconds since 1970.
        fingerprint: Changes when answers may change.

    Raises:
        ModelFormatError: It is no model that npurt can read.
    """

    def __init__(self, path: Path, name: str | None = None, template: str | None = None) -> None:
        self.path = path
        self.name = name or path.stem
        with errors_of(path), MappedGGUF(path) as file:
            self._read(file)
            self.nbytes = sum(part.stat().st_size for part in file.paths)
            self.created = int(path.stat().st_mtime)
        if template is not None:
            self.source = named_templates.source(template)
        identity = f"{__version__} {path.name} {self.nbytes} {self.source}"
        self.fingerprint = "fp_" + hashlib.sha256(identity.encode()).hexdigest()[:10]

    def _read(self, file: MappedGGUF) -> None:
        """Take what is needed from *file*, which is closed afterwards."""
        self.metadata: Mapping[str, Any] = {
            key: value for key, value in file.metadata.items() if isinstance(value, str | int)
        }
        self.n_vocab = len(token_texts(file.metadata))
        self.source = optional(file.metadata, "tokenizer.chat_template", str, "")
