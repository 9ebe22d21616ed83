"""Tokenizers with the interface of mlx-lm, which follows transformers."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from npurt.compat.mlx_lm.functions import as_schema
from npurt.compat.mlx_lm.missing import refuse
from npurt.errors import ModelFormatError, SettingError, brief
from npurt.llm.decode.calls.hermes import Hermes
from npurt.llm.decode.llama import Llama
from npurt.llm.text.chat import joined_parts
from npurt.llm.text.tokenizer import Tokenizer
from npurt.llm.text.vocabulary import token_texts
from npurt.runtime.open.arguments import flag, listed

TOOL_CALL = ("<tool_call>", "</tool_call>")
THOUGHTS = (  # texts before and after a thought, if both are tokens of the model
    ("<think>", "</think>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|think:start|>", "<|think:end|>"),
)
# Options of transformers that npurt does not support; they are not passed to templates.
UNREAD = ("chat_template", "documents", "padding", "return_assistant_tokens_mask", "return_dict",
          "return_tensors", "truncation")  # fmt: skip


class StreamingDetokenizer:
    """An incremental decoder, whose text contains only complete characters.

    Attributes:
        text: The text so far.
        tokens: The tokens so far.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.reset()

    def reset(self) -> None:
        """Remove all tokens and the text."""
        self.text = ""
        self.tokens: list[int] = []
        self._shown = 0
        self._stream = self._tokenizer.stream()

    def add_token(self, token: int) -> None:
        """Append *token* and the characters that it completes."""
        self.tokens.append(token)
        self.text += self._stream.push(token)

    def finalize(self) -> None:
        """End the text; append U+FFFD for an incomplete character."""
        self.text += self._stream.finish()

    @property
    def last_segment(self) -> str:
        """The text since the last access to this property."""
        start, self._shown = self._shown, len(self.text)
        return self.text[start:]


class Encoding(dict[str, Any]):
    """The result of calling a tokenizer: a dict whose values are also attributes.

    Attributes:
        input_ids: The ids of a text, or a list with the ids of each text.
        attention_mask: A 1 for each id, nested as *input_ids* is.
    """

    def __init__(self, input_ids: list[Any], attention_mask: list[Any]) -> None:
        super().__init__(input_ids=input_ids, attention_mask=attention_mask)
        self.input_ids, self.attention_mask = input_ids, attention_mask


class TokenizerWrapper:
    """The tokenizer of *model*.

    Attributes:
        eos_token_ids: The ids that end a generation.
    """

    def __init__(self, model: Llama) -> None:
        self._model = model
        self._tokenizer = model.tokenizer
        self.eos_token_ids = set(self._tokenizer.eog)

    @property
    def bos_token_id(self) -> int | None:
        """The id of BOS, or None if the model has no BOS."""
        return self._tokenizer.bos

    @property
    def eos_token_id(self) -> int | None:
        """The id of EOS, or None if the model has no EOS."""
        return self._tokenizer.eos

    @property
    def bos_token(self) -> str | None:
        """The text of BOS, or None if the model has no BOS."""
        return self._text(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """The text of EOS, or None if the model has no EOS."""
        return self._text(self.eos_token_id)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self._model.config.n_vocab

    @property
    def chat_template(self) -> str:
        """The source of the chat template.

        Raises:
            ModelFormatError: The model has no chat template.
        """
        return self._model.template.source

    @property
    def detokenizer(self) -> StreamingDetokenizer:
        """A new detokenizer."""
        return StreamingDetokenizer(self._tokenizer)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of *text*.

        With *add_special_tokens*, BOS comes first if the file's metadata require it.
        """
        begin = None if flag("add_special_tokens", add_special_tokens) else False
        return self._tokenizer.encode(text, add_bos=begin)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of *token_ids*."""
        ids = token_ids if isinstance(token_ids, Iterable) else [token_ids]
        hidden = flag("skip_special_tokens", skip_special_tokens)
        return self._tokenizer.decode(ids, special=not hidden)

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        padding: Any = None,
        truncation: Any = None,
        return_tensors: Any = None,
    ) -> Encoding:
        """Return the ids of *text*, or of several texts.

        Args:
            text: A text or a list of texts.
            add_special_tokens: As for `encode`.
            padding, truncation, return_tensors: Refused unless None or False.

        Raises:
            UnsupportedOp: npurt does not support an option of transformers' function.
        """
        refuse(locals(), "padding", "truncation", "return_tensors")
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return Encoding(ids, [1] * len(ids))
        each = [self.encode(one, add_special_tokens) for one in listed("text", text, "texts")]
        return Encoding(each, [[1] * len(ids) for ids in each])

    def __len__(self) -> int:
        return self.vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Return a dict, text -> id, of all tokens, with the texts in the file's encoding."""
        return dict(self._vocabulary)

    @functools.cached_property
    def _vocabulary(self) -> dict[str, int]:
        texts = enumerate(token_texts(self._model.metadata))
        return {str(text): token for token, text in texts}

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or the ids of several tokens.

        The id of a text that is no token is the id of the unknown token, or None.
        """
        unknown = self._model.metadata.get("tokenizer.ggml.unknown_token_id")
        if isinstance(tokens, str):
            return self._vocabulary.get(tokens, unknown)
        return [self._vocabulary.get(token, unknown) for token in listed("tokens", tokens, "texts")]

    def convert_ids_to_tokens(self, ids: int | Sequence[int]) -> Any:
        """Return the text of a token, or the texts of several tokens, in the file's encoding.

        Raises:
            LayoutError: An id is not in the vocabulary.
        """
        texts = token_texts(self._model.metadata)
        many = ids if isinstance(ids, Iterable) else [ids]
        found = [str(texts[i]) for i in self._model.model.valid(many)]
        return found if isinstance(ids, Iterable) else found[0]

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        **template_variables: Any,
    ) -> Any:
        """Return the prompt of *conversation*, rendered with the model's chat template.

        A prompt for an answer leaves out the oldest turns that do not fit in the context.

        Args:
            conversation: Messages as for `npurt.Llama.chat`.
            tools: As for `npurt.Llama.chat`, or functions with type hints and docstrings.
            tokenize: Return token ids instead of text.
            add_generation_prompt: End the prompt with the start of the model's answer.
            continue_final_message: End the prompt with the text of the last message, which the
                model continues.
            template_variables: Variables of the template, such as *enable_thinking*, whose default
                is `has_thinking`.  As in transformers, variables that the template does not read
                have no effect.

        Raises:
            LayoutError: *conversation* is empty, or the template raises an error.
            SettingError: The template omits the last message.
            UnsupportedOp: npurt does not support an option of transformers' function.
        """
        refuse(dict.fromkeys(UNREAD) | template_variables, *UNREAD)
        template = self._model.template
        options = {k: v for k, v in template_variables.items() if k in template.variables}
        if "enable_thinking" in template.variables:
            options.setdefault("enable_thinking", self.has_thinking)
        options["add_generation_prompt"] = flag("add_generation_prompt", add_generation_prompt)
        named = listed(
            "tools", () if tools is None else tools, "a list of functions or their JSON schemas"
        )
        schemas = [as_schema(each) if callable(each) else each for each in named]
        continued = flag("continue_final_message", continue_final_message)
        rendered: list[tuple[list[int], Sequence[Mapping[str, Any]]]] = []

        def render(kept: Sequence[Mapping[str, Any]]) -> list[int]:
            ids = self._model.apply_chat_template(kept, tools=schemas, **options)
            rendered.append((ids, kept))
            return ids

        prompts = continued or options["add_generation_prompt"]
        ids = self._model.fit(conversation, render) if prompts else render(conversation)
        if tokenize and not continued:
            return ids
        if schemas:
            options["tools"] = schemas
        messages = joined_parts(next(kept for made, kept in rendered if made is ids))
        text = template.render(messages, **options)
        if continued:
            text = _up_to_the_end_of(messages[-1], text, options["add_generation_prompt"])
        if not tokenize:
            return text
        printed = bool(self.bos_token) and text.startswith(str(self.bos_token))
        return self._tokenizer.encode(text, add_bos=False if printed else None)

    def add_eos_token(self, token: str | int) -> None:
        """Add *token*, an id or the text of one token, to the ids that end a generation.

        Raises:
            SettingError: *token* is no token.
        """
        ids = [token] if isinstance(token, int) else self.encode(token, add_special_tokens=False)
        if len(ids) != 1 or not 0 <= ids[0] < self.vocab_size:
            raise SettingError(
                f"{brief(token)} is not one token", remedy="pass the text of a token"
            )
        self.eos_token_ids.add(ids[0])

    @property
    def has_tool_calling(self) -> bool:
        """Whether the template reads tools, and both texts of `TOOL_CALL` are tokens."""
        return "tools" in self._model.template.variables and all(map(self._is_token, TOOL_CALL))

    @property
    def tool_call_start(self) -> str | None:
        """The text before a call, or None if the model has no tool calling."""
        return TOOL_CALL[0] if self.has_tool_calling else None

    @property
    def tool_call_end(self) -> str | None:
        """The text after a call, or None if the model has no tool calling."""
        return TOOL_CALL[1] if self.has_tool_calling else None

    @property
    def tool_parser(self) -> Callable[..., Any] | None:
        """A parser of the JSON between `tool_call_start` and `tool_call_end`, or None."""
        return _read_call if self.has_tool_calling else None

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        try:
            return bool(self.chat_template)
        except ModelFormatError:
            return False

    # --- Thoughts -------------------------------------------------------------------------------

    @functools.cached_property
    def _thought(self) -> tuple[str, str] | None:
        return next(
            (pair for pair in THOUGHTS if all(text in self._vocabulary for text in pair)), None
        )

    @property
    def has_thinking(self) -> bool:
        """Whether the model has tokens that begin and end a thought."""
        return self._thought is not None

    @property
    def think_start(self) -> str | None:
        """The text before a thought, or None if the model has no thoughts."""
        return self._thought and self._thought[0]

    @property
    def think_end(self) -> str | None:
        """The text after a thought, or None if the model has no thoughts."""
        return self._thought and self._thought[1]

    @property
    def think_start_id(self) -> int | None:
        """The id of `think_start`, or None."""
        return self._thought and self._vocabulary[self._thought[0]]

    @property
    def think_end_id(self) -> int | None:
        """The id of `think_end`, or None."""
        return self._thought and self._vocabulary[self._thought[1]]

    def _is_token(self, text: str) -> bool:
        return len(self.encode(text, add_special_tokens=False)) == 1

    def _text(self, token: int | None) -> str | None:
        return None if token is None else self.decode(token)


def _read_call(text: str, tools: Any = None) -> Any:
    """Return the call in the JSON *text*: a dict with ``name`` and ``arguments``.

    Several calls are returned as a list.

    Raises:
        ValueError: *text* has no call.
    """
    calls = [
        {"name": call.name, "arguments": json.loads(call.arguments)}
        for call in Hermes().parse(text, {})
    ]
    return calls[0] if len(calls) == 1 else calls


def _up_to_the_end_of(message: Mapping[str, Any], text: str, prompted: bool) -> str:
    """Return *text*, a rendered conversation, up to the end of the content of *message*.

    Args:
        prompted: Whether the start of a new answer follows *message* in *text*.

    Raises:
        SettingError: *prompted* is True, or *text* does not contain the content.
    """
    content = message.get("content")
    last = content.strip() if isinstance(content, str) else ""
    if prompted or not last or last not in text:
        raise SettingError(
            "continue_final_message requires add_generation_prompt=False and a template that "
            "includes the text of the last message",
            remedy="end the conversation with the beginning of an answer",
        )
    return text[: text.rindex(last) + len(last)]
