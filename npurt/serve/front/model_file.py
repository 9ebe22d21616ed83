"""A model's description from its file's header, without its tokenizer and weights."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npurt.llm.file.mapped import MappedGGUF, errors_of
from npurt.llm.file.metadata import optional
from npurt.llm.file.pooling import has_classifier
from npurt.llm.text import named_templates
from npurt.llm.text.vocabulary import token_texts
from npurt.version import __version__


class ModelFile:
    """The description of a model file.

    Args:
        path: The file; the first file of a split model.
        name: The name in requests, or several, separated by commas; by default the file name
            without its suffix.
        template: A chat template, as *chat_template* of `Llama`.

    Attributes:
        name: The first name in requests.
        aliases: The other names.
        metadata: The header's metadata that are strings or integers.
        n_vocab: Number of tokens in the vocabulary.
        ranks: Whether the model has a reranker's classifier.
        source: The source of the chat template; "" if the model has none.
        nbytes: Size of all files of the model in bytes.
        created: When the file was written, in seconds since 1970.
        fingerprint: A string that changes when the same request may get another answer.
        identity: The identity of the file; see `MappedGGUF.identity`.

    Raises:
        ModelFormatError: The file is not a model that npurt can read.
    """

    def __init__(self, path: Path, name: str | None = None, template: str | None = None) -> None:
        self.path = path
        first, *others = [each.strip() for each in (name or path.stem).split(",")]
        self.name, self.aliases = first or path.stem, [each for each in others if each]
        with errors_of(path), MappedGGUF(path) as file:
            self._read(file)
            self.nbytes = sum(part.stat().st_size for part in file.paths)
            self.created = int(path.stat().st_mtime)
        if template is not None:
            self.source = named_templates.source(template)
        described = f"{__version__} {self._header} {self.source}"
        self.fingerprint = "fp_" + hashlib.sha256(described.encode()).hexdigest()[:10]

    def _read(self, file: MappedGGUF) -> None:
        """Set the attributes that come from *file*, which is closed afterwards."""
        self.identity, self._header = file.identity, file.header_digest
        self.metadata: Mapping[str, Any] = {
            key: value for key, value in file.metadata.items() if isinstance(value, str | int)
        }
        self.n_vocab = len(token_texts(file.metadata))
        self.ranks = has_classifier(file.tensors)
        self.source = optional(file.metadata, "tokenizer.chat_template", str, "")
