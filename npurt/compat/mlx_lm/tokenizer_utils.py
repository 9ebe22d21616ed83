"""Tokenizers with the interface of mlx-lm's, which is that of transformers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from npurt.compat.mlx_lm.functions import as_schema
from npurt.compat.mlx_lm.missing import refuse
from npurt.errors import SettingError, brief
from npurt.llm.decode.model import Llama
from npurt.llm.text.chat import joined_parts
from npurt.llm.text.tokenizer import Tokenizer
from npurt.runtime.open.arguments import flag, listed

TOOL_CALL = ("<tool_call>", "</tool_call>")
# Options of transformers that are no variables of a template: refused unless they are unset.
UNREAD = ("chat_template", "documents", "padding", "return_assistant_tokens_mask", "return_dict",
          "return_tensors", "truncation")  # fmt: skip


class StreamingDetokenizer:
    """Text that grows token by token, and never ends inside a character.

    Attributes:
        text: All text so far.
        tokens: All tokens so far.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.reset()

    def reset(self) -> None:
        """Begin a new text."""
        self.text = ""
        self.tokens: list[int] = []
        self._shown = 0
        self._stream = self._tokenizer.stream()

    def add_token(self, token: int) -> None:
        """Append *token*."""
        self.tokens.append(token)
        self.text += self._stream.push(token)

    def finalize(self) -> None:
        """End the text; an incomplete character becomes U+FFFD."""
        self.text += self._stream.finish()

    @property
    def last_segment(self) -> str:
        """The text since this was read last."""
        start, self._shown = self._shown, len(self.text)
        return self.text[start:]


class TokenizerWrapper:
    """The tokenizer of *model*.

    Attributes:
        eos_token_ids: The ids that end a text.
    """

    def __init__(self, model: Llama) -> None:
        self._model = model
        self._tokenizer = model.tokenizer
        self.eos_token_ids = set(self._tokenizer.eog)

    @property
    def bos_token_id(self) -> int | None:
        """The id of BOS; None if there is none."""
        return self._tokenizer.bos

    @property
    def eos_token_id(self) -> int | None:
        """The id of EOS; None if there is none."""
        return self._tokenizer.eos

    @property
    def bos_token(self) -> str | None:
        """The text of BOS."""
        return self._text(self.bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """The text of EOS."""
        return self._text(self.eos_token_id)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return self._model.config.n_vocab

    @property
    def chat_template(self) -> str:
        """The source of the chat template.

        Raises:
            ModelFormatError: There is none.
        """
        return self._model.template.source

    @property
    def detokenizer(self) -> StreamingDetokenizer:
        """A new detokenizer."""
        return StreamingDetokenizer(self._tokenizer)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of *text*; with BOS if it is asked for and the model wants one."""
        begin = None if flag("add_special_tokens", add_special_tokens) else False
        return self._tokenizer.encode(text, add_bos=begin)

    def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of *token_ids*."""
        ids = token_ids if isinstance(token_ids, Iterable) else [token_ids]
        hidden = flag("skip_special_tokens", skip_special_tokens)
        return self._tokenizer.decode(ids, special=not hidden)

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
        """Return the prompt that the model's template makes of *conversation*.

        Args:
            conversation: As for `npurt.Llama.chat`.
            tools: As for `npurt.Llama.chat`, or functions with type hints and docstrings.
            tokenize: Return token ids; otherwise, text.
            add_generation_prompt: End with the start of the model's answer.
            continue_final_message: End with the text of the last message, for the model to go on.
            template_variables: Variables of the template, such as *enable_thinking*.  As there,
                those that the template does not read change nothing.

        Raises:
            LayoutError: There are no messages, or the template refuses them.
            SettingError: The template does not read *tools*, or leaves the last message out.
            UnsupportedOp: npurt does not have an option of transformers' function.
        """
        refuse(dict.fromkeys(UNREAD) | template_variables, *UNREAD)
        template = self._model.template
        options = {k: v for k, v in template_variables.items() if k in template.variables}
        options["add_generation_prompt"] = flag("add_generation_prompt", add_generation_prompt)
        named = listed(
            "tools", () if tools is None else tools, "a list of functions or their JSON schemas"
        )
        schemas = [as_schema(each) if callable(each) else each for each in named]
        ids = self._model.apply_chat_template(conversation, tools=schemas, **options)
        going_on = flag("continue_final_message", continue_final_message)
        if tokenize and not going_on:
            return ids
        if schemas:
            options["tools"] = schemas
        messages = joined_parts(conversation)
        text = template.render(messages, **options)
        if going_on:
            text = _up_to_the_end_of(messages[-1], text, options["add_generation_prompt"])
        if not tokenize:
            return text
        printed = bool(self.bos_token) and text.startswith(str(self.bos_token))
        return self._tokenizer.encode(text, add_bos=False if printed else None)

    def add_eos_token(self, token: str | int) -> None:
        """Let *token*, an id or a text of one token, end texts, too.

        Raises:
            SettingError: It is no token.
        """
        ids = [token] if isinstance(token, int) else self.encode(token, add_special_tokens=False)
        if len(ids) != 1 or not 0 <= ids[0] < self.vocab_size:
            raise SettingError(
                f"{brief(token)} is not one token", remedy="pass the text of a token"
            )
        self.eos_token_ids.add(ids[0])

    @property
    def has_tool_calling(self) -> bool:
        """Whether the template reads tools, and `TOOL_CALL` are tokens."""
        return "tools" in self._model.template.variables and all(map(self._is_token, TOOL_CALL))

    @property
    def tool_call_start(self) -> str | None:
        """What a call begins with; None: unknown."""
        return TOOL_CALL[0] if self.has_tool_calling else None

    @property
    def tool_call_end(self) -> str | None:
        """What a call ends with; None: unknown."""
        return TOOL_CALL[1] if self.has_tool_calling else None

    def _is_token(self, text: str) -> bool:
        return len(self.encode(text, add_special_tokens=False)) == 1

    def _text(self, token: int | None) -> str | None:
        return None if token is None else self.decode(token)


def _up_to_the_end_of(message: Mapping[str, Any], text: str, prompted: bool) -> str:
    """Return *text*, a rendered conversation, up to the end of the content of *message*.

    Args:
        prompted: Whether an answer of its own begins after it.
    """
    content = message.get("content")
    last = content.strip() if isinstance(content, str) else ""
    if prompted or not last or last not in text:
        raise SettingError(
            "continue_final_message goes with add_generation_prompt=False and a last message whose "
            "text the template writes",
            remedy="end the conversation with the beginning of an answer",
        )
    return text[: text.rindex(last) + len(last)]
