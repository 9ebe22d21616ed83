"""What the front knows of a model: its tokenizer and chat template, not its weights."""

import contextlib
import ctypes
import functools
import gc
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npurt.errors import LayoutError, ModelFormatError, NpurtError
from npurt.llm.file.mapped import MappedGGUF
from npurt.llm.text.chat import ChatTemplate, joined_parts
from npurt.llm.text.fill_in import FillIn
from npurt.llm.text.tokenizer import Tokenizer
from npurt.serve.http.errors import of, wrong
from npurt.serve.model.model_file import ModelFile
from npurt.serve.model.reading import BEGIN, END


class ServedModel(ModelFile):
    """A model whose texts the front can write and read.  Arguments and errors as `ModelFile`."""

    def __init__(self, path: Path, name: str | None = None, template: str | None = None) -> None:
        super().__init__(path, name, template)
        _give_back()

    def _read(self, file: MappedGGUF) -> None:
        super()._read(file)
        self.tokenizer = Tokenizer.from_gguf(file.metadata)

    # --- Text -----------------------------------------------------------------------------------

    def encode(self, text: str, *, add_bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the ids of *text*, or raise HttpError."""
        try:
            return self.tokenizer.encode(text, add_bos=add_bos, special=special)
        except NpurtError as error:
            raise of(error) from error

    def encode_whole(self, text: str) -> list[int]:
        """Return the ids of all of *text*, to be embedded: with EOS where the model wants it."""
        ids = self.encode(text, special=False)
        end = self.tokenizer.eos if self.tokenizer.add_eos else None
        return ids if end is None else [*ids, end]

    def text_of(self, token: int | None) -> str:
        """Return the text of a token; that of None is empty."""
        return "" if token is None else self.tokenizer.decode([token])

    def markup(self, texts: Sequence[str]) -> frozenset[int]:
        """Return the ids of those of *texts* that are tokens of markup."""
        return frozenset(self._control[text] for text in texts if text in self._control)

    @functools.cached_property
    def _control(self) -> dict[str, int]:
        """Ids of markup by text."""
        return {self.tokenizer.decode([token]): token for token in self.tokenizer.control}

    # --- Chat -----------------------------------------------------------------------------------

    @property
    def thinks(self) -> bool:
        """Whether the model thinks aloud, as its template says."""
        return BEGIN in self.source or END in self.source

    @functools.cached_property
    def template(self) -> ChatTemplate:
        """The chat template.

        Raises:
            HttpError: The model has none, or a broken one.
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
        """Return the prompt that *messages* make by the template.

        Raises:
            HttpError: The template refuses them, or does not read *tools*.
        """
        template = self.template
        if tools and "tools" not in template.variables:
            raise wrong(
                f"the chat template of {self.name} knows no tools",
                "leave tools out, or use a model that can call functions",
                param="tools", code="unsupported",
            )  # fmt: skip
        try:
            given = joined_parts([_readable(message, self.source) for message in messages])
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
        """Return the ids of what `prompt` returned, which may begin with BOS."""
        bos = self.text_of(self.tokenizer.bos)
        printed = bool(bos) and text.startswith(bos)
        return self.encode(text, add_bos=False if printed else None)

    # --- Filling a gap --------------------------------------------------------------------------

    @functools.cached_property
    def _fill_in(self) -> FillIn | None:
        return FillIn.of(self.tokenizer, self.metadata)

    @property
    def fills_in(self) -> bool:
        """Whether the model can fill a gap."""
        return self._fill_in is not None

    def around(self, before: str, after: str) -> list[int]:
        """Return a prompt whose continuation stands between *before* and *after*.

        Raises:
            HttpError: The model has no tokens for that, or the texts cannot be read.
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
    """Give memory that is free back to the system: a vocabulary takes far more while it is read."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def _readable(message: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return *message* as templates expect it.

    The role of a developer is that of the system, unless the template knows it.  Arguments of
    calls are objects, where clients send them as text.  What a client left out is empty.
    """
    made = {key: value for key, value in message.items() if value is not None}
    if made.get("role") == "developer" and "developer" not in source:
        made["role"] = "system"
    calls = made.get("tool_calls")
    if isinstance(calls, list):
        made["tool_calls"] = [_readable_call(call) for call in calls]
        if not calls:
            del made["tool_calls"]
    made.setdefault("content", "")
    return made


def _readable_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            parsed = json.loads(arguments or "{}")
            if isinstance(parsed, dict):
                return {**call, "function": {**function, "arguments": parsed}}  # type: ignore[dict-item]
    return call
