"""Tokenizers with the interface of mlx-lm's, which is that of transformers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from npurt.errors import SettingError, brief
from npurt.llm.decode.model import Llama
from npurt.llm.text.chat import joined_parts
from npurt.llm.text.tokenizer import Tokenizer
from npurt.runtime.open.arguments import flag


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
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **template_variables: Any,
    ) -> Any:
        """Return the prompt that the model's template makes of *conversation*.

        Args:
            conversation: As for `npurt.Llama.chat`.
            tools: As for `npurt.Llama.chat`.
            tokenize: Return token ids; otherwise, text.
            add_generation_prompt: End with the start of the model's answer.
            template_variables: Variables of the template, such as *enable_thinking*.

        Raises:
            LayoutError: There are no messages, or the template refuses them.
            SettingError: The template does not read *tools* or a variable.
        """
        options = {"add_generation_prompt": add_generation_prompt, **template_variables}
        ids = self._model.apply_chat_template(conversation, tools=tools, **options)
        if tokenize:
            return ids
        if tools:
            options["tools"] = tools
        return self._model.template.render(joined_parts(conversation), **options)

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

    def _text(self, token: int | None) -> str | None:
        return None if token is None else self.decode(token)
