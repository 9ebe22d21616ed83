"""A model as the front loads it: with tokenizer and chat template, without weights."""

import ctypes
import functools
import gc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npurt.errors import LayoutError, ModelFormatError, NpurtError
from npurt.llm.decode.calls.reading import BEGIN, END
from npurt.llm.file.mapped import MappedGGUF
from npurt.llm.text.chat import ChatTemplate, joined_parts
from npurt.llm.text.fill_in import FillIn
from npurt.llm.text.pairs import pair, whole
from npurt.llm.text.tokenizer import Tokenizer
from npurt.serve.front.model_file import ModelFile
from npurt.serve.http.errors import of, wrong


class ServedModel(ModelFile):
    """A model with its tokenizer and chat template.  Arguments and errors as for `ModelFile`."""

    def __init__(self, path: Path, name: str | None = None, template: str | None = None) -> None:
        super().__init__(path, name, template)
        _give_back()

    def _read(self, file: MappedGGUF) -> None:
        super()._read(file)
        self.tokenizer = Tokenizer.from_gguf(file.metadata)

    # --- Text -----------------------------------------------------------------------------------

    def encode(self, text: str, *, add_bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the token ids of *text*.

        Raises:
            HttpError: The tokenizer refuses *text*.
        """
        try:
            return self.tokenizer.encode(text, add_bos=add_bos, special=special)
        except NpurtError as error:
            raise of(error) from error

    def encode_whole(self, text: str) -> list[int]:
        """Return the token ids of *text* for an embedding, with EOS if the metadata require it."""
        try:
            return whole(self.tokenizer, text)
        except NpurtError as error:
            raise of(error) from error

    def encode_pair(self, query: str, document: str) -> tuple[list[int], int]:
        """Return the token ids of a pair for a reranker.

        The second number is the position at which the second segment begins, or 0 without segments.

        Raises:
            HttpError: The model is no reranker, or the tokenizer refuses a text.
        """
        if not self.ranks:
            raise wrong(
                f"{self.name} is no reranker: it has no classifier",
                "use a reranker, or compare the vectors of /v1/embeddings", code="unsupported",
            )  # fmt: skip
        try:
            ids, segments = pair(self.tokenizer, self.metadata, query, document)
        except NpurtError as error:
            raise of(error) from error
        return ids, segments.count(0) if segments else 0

    def text_of(self, token: int | None) -> str:
        """Return the text of a token; "" for None."""
        return "" if token is None else self.tokenizer.decode([token])

    def markup(self, texts: Sequence[str]) -> frozenset[int]:
        """Return the ids of the control tokens whose text is in *texts*."""
        return frozenset(self._control[text] for text in texts if text in self._control)

    @functools.cached_property
    def _control(self) -> dict[str, int]:
        """Ids of the control tokens by their text."""
        return {self.tokenizer.decode([token]): token for token in self.tokenizer.control}

    # --- Chat -----------------------------------------------------------------------------------

    @property
    def thinks(self) -> bool:
        """Whether the chat template contains the tags of thoughts."""
        return BEGIN in self.source or END in self.source

    @functools.cached_property
    def template(self) -> ChatTemplate:
        """The chat template.

        Raises:
            HttpError: The model has no chat template, or an invalid one.
        """
        if not self.source:
            raise wrong(
                f"{self.name} has no chat template",
                "use /v1/completions, or start the server with --chat-template",
                code="no_chat_template",
            )
        tokens = self.tokenizer
        try:
            return ChatTemplate(
                self.source, bos=self.text_of(tokens.bos), eos=self.text_of(tokens.eos)
            )
        except ModelFormatError as error:
            raise of(error) from error

    def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render *messages* with the chat template; return the prompt.

        Raises:
            HttpError: The template raises an error for the messages.
        """
        template = self.template
        try:
            given = joined_parts(messages)
            return template.render(
                given,
                add_generation_prompt=add_generation_prompt,
                tools=tools or None,
                **{
                    name: value
                    for name, value in (variables or {}).items()
                    if name in template.variables
                },
            )
        except LayoutError as error:
            raise wrong(error.what, error.remedy, param="messages") from error
        except NpurtError as error:
            raise of(error) from error

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of a prompt from `prompt`; add BOS unless *text* begins with it."""
        bos = self.text_of(self.tokenizer.bos)
        printed = bool(bos) and text.startswith(bos)
        return self.encode(text, add_bos=False if printed else None)

    # --- Fill in the middle ---------------------------------------------------------------------

    @functools.cached_property
    def _fill_in(self) -> FillIn | None:
        return FillIn.of(self.tokenizer, self.metadata)

    @property
    def fills_in(self) -> bool:
        """Whether the model has the tokens for fill-in-the-middle."""
        return self._fill_in is not None

    def around(self, before: str, after: str) -> list[int]:
        """Return a fill-in-the-middle prompt, whose completion is between *before* and *after*.

        Raises:
            HttpError: The model does not support fill-in-the-middle, or the tokenizer refuses a
                text.
        """
        if self._fill_in is None:
            raise wrong(
                f"{self.name} cannot fill in text: it has no tokens for prefix, suffix and middle",
                "use a model that can, such as Qwen2.5-Coder", code="unsupported",
            )  # fmt: skip
        try:
            return self._fill_in.around(self.tokenizer, before, after)
        except NpurtError as error:
            raise of(error) from error


def _give_back() -> None:
    """Return free heap memory to the system, because reading a vocabulary takes much of it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # a function of glibc
    if trim is not None:
        trim(0)
