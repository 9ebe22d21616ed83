"""Write text with a model: `generate` from a prompt, `chat` from messages."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack, overload

from npurt.errors import LayoutError, ModelFormatError, SettingError, UnsupportedOp
from npurt.llm.decode.generate import Generation, Generator, stop_texts
from npurt.llm.decode.sampler import Sampler, Sampling
from npurt.llm.file.metadata import optional
from npurt.llm.text.chat import ChatTemplate, joined_parts
from npurt.runtime.open.arguments import none_at_minus_one

Prompt = str | Sequence[int]
Message = Mapping[str, Any]

# Options of llama-cpp-python, mlx-lm and OpenAI's interface that npurt does not have, with the
# values that ask for nothing.
MISSING: dict[str, Any] = {
    "best_of": 1, "frequency_penalty": 0.0, "function_call": None, "functions": None,
    "grammar": None, "logit_bias": None, "logits_processor": None, "logprobs": False,
    "mirostat_eta": 0.1, "mirostat_mode": 0, "mirostat_tau": 5.0, "n": 1, "presence_penalty": 0.0,
    "stopping_criteria": None, "suffix": None, "tfs_z": 1.0, "tool_choice": "auto",
    "top_logprobs": None, "typical_p": 1.0,
}  # fmt: skip


class Options(TypedDict, total=False):
    """The options of `Llama.generate` and `Llama.chat`."""

    max_tokens: int | None
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    seed: int | None
    stop: str | Sequence[str] | None


class TextGenerator:
    """Continues prompts and answers messages.

    Args:
        generator: Continues token ids.
        seed: Of sampling; None: a different one each time.
        template: Jinja source of the chat template; None: the file's.

    Attributes:
        seed: As given; it may be changed.
    """

    def __init__(self, generator: Generator, *, seed: int | None, template: str | None) -> None:
        self.seed = seed
        self._generator = generator
        self._model = generator.context.model
        self._template = template

    # --- Tokens ---------------------------------------------------------------------------------

    def tokenize(self, text: str, add_bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the ids of *text*; see `Tokenizer.encode`."""
        return self._model.tokenizer.encode(text, add_bos=add_bos, special=special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of *ids*."""
        return self._model.tokenizer.decode(self._model.valid(ids))

    # --- Generation -----------------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[False] = False, **options: Unpack[Options]
    ) -> str: ...

    @overload
    def generate(
        self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[Options]
    ) -> Iterator[str]: ...

    @overload
    def generate(
        self, prompt: Prompt, *, stream: bool, **options: Unpack[Options]
    ) -> str | Iterator[str]: ...

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        stream: bool = False,
        **unknown: Any,
    ) -> str | Iterator[str]:
        """Continue *prompt*, a text or token ids; the prefix that the cache shares with it is kept.

        A second generation may begin while a stream is open; it ends the stream, whose next step
        raises SettingError.

        Args:
            max_tokens: Stop after this number; None or -1: at the end token, or when the context is
                full.
            temperature: 0 takes the most likely token each time.
            top_k, top_p, min_p, repeat_penalty: See `Sampling`.
            seed: Of this generation; by default the model's; -1: a different one each time.
            stop: Texts that end the generation and are not part of it.
            stream: Return an iterator of pieces of text instead of the whole.
            unknown: Refused: options of other libraries by name, unless they ask for nothing.

        Raises:
            ContextFull: The prompt does not fit.
            NotOffloaded: With *strict*: the device failed, or computed something wrong.
            SettingError: An option makes no sense, or another thread is using the model.
            UnsupportedOp: npurt does not have the option.
        """
        for name in without_missing(unknown):
            raise TypeError(f"generate() got an unexpected keyword argument {name!r}")
        sampling = Sampling(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repeat_penalty=repeat_penalty,
            seed=none_at_minus_one("seed", self.seed if seed is None else seed),
        )
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self._model.valid(prompt)
        limit = none_at_minus_one("max_tokens", max_tokens)
        sampler = Sampler(sampling, self._model.tokenizer.never_sampled)
        pieces = iter(Generation(self._generator, ids, sampler, stop_texts(stop), limit))
        if stream:
            return pieces
        with self._model.lock:
            return "".join(pieces)

    # A TypedDict cannot stand beside other variables, so these name the options again.
    # `self` is positional, so that mypy does not take it for a template's variable in `Part`.
    @overload
    def chat(
        self, /, messages: Sequence[Message], *, stream: Literal[False] = False,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        response_format: Mapping[str, Any] | None = ..., enable_thinking: bool | None = ...,
        max_tokens: int | None = ..., temperature: float = ..., top_k: int = ...,
        top_p: float = ..., min_p: float = ..., repeat_penalty: float = ...,
        seed: int | None = ..., stop: str | Sequence[str] | None = ..., **template_variables: Any,
    ) -> str: ...  # fmt: skip

    @overload
    def chat(
        self, /, messages: Sequence[Message], *, stream: Literal[True],
        tools: Sequence[Mapping[str, Any]] | None = ...,
        response_format: Mapping[str, Any] | None = ..., enable_thinking: bool | None = ...,
        max_tokens: int | None = ..., temperature: float = ..., top_k: int = ...,
        top_p: float = ..., min_p: float = ..., repeat_penalty: float = ...,
        seed: int | None = ..., stop: str | Sequence[str] | None = ..., **template_variables: Any,
    ) -> Iterator[str]: ...  # fmt: skip

    @overload
    def chat(
        self, /, messages: Sequence[Message], *, stream: bool,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        response_format: Mapping[str, Any] | None = ..., enable_thinking: bool | None = ...,
        max_tokens: int | None = ..., temperature: float = ..., top_k: int = ...,
        top_p: float = ..., min_p: float = ..., repeat_penalty: float = ...,
        seed: int | None = ..., stop: str | Sequence[str] | None = ..., **template_variables: Any,
    ) -> str | Iterator[str]: ...  # fmt: skip

    def chat(
        self,
        /,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        response_format: Mapping[str, Any] | None = None,
        enable_thinking: bool | None = None,
        **options: Any,
    ) -> str | Iterator[str]:
        """Answer *messages*, dicts with ``role`` and ``content``, by the model's chat template.

        Content is text, or a list of parts ``{"type": "text", "text": ...}``, which are joined.

        Args:
            stream: As for `generate`.
            tools: Functions that the model may call, as JSON schemas.  Its calls are part of the
                answer, as it writes them.
            response_format: None or ``{"type": "text"}``; npurt has no other yet.
            enable_thinking: Whether a model that can think aloud before it answers does so.
            options: Those of `generate`, and variables of the template.

        Raises:
            LayoutError: *messages* are none, or the template refuses them.
            ModelFormatError: The file has no chat template, or a broken one.
            SettingError: The template does not read *tools*, *enable_thinking* or a variable.
            UnsupportedOp: npurt does not have the option.
        """
        if response_format is not None and response_format != {"type": "text"}:
            raise UnsupportedOp(
                f"response_format is {response_format!r:.100}, and npurt writes free text only yet",
                remedy="leave response_format out, and ask for the format in a message",
            )
        variables = without_missing(options)
        options = {n: variables.pop(n) for n in Options.__annotations__ if n in variables}
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        ids = self.apply_chat_template(messages, tools=tools, **variables)
        return self.generate(ids, stream=stream, **options)

    def apply_chat_template(
        self,
        /,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_variables: Any,
    ) -> list[int]:
        """Return the prompt that `chat` makes of *messages*, as token ids.

        Args:
            tools: As for `chat`.
            add_generation_prompt: End the prompt with the start of the model's answer.
            template_variables: Variables of the template, such as *enable_thinking*.

        Raises:
            LayoutError: *messages* are none, or the template refuses them.
            ModelFormatError: The file has no chat template, or a broken one.
            SettingError: The template does not read *tools* or a variable.
        """
        if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
            raise LayoutError(
                f"messages are {messages!r:.60}",
                remedy='pass a list such as [{"role": "user", "content": "Hello"}]',
            )
        given = joined_parts(messages)
        if tools:
            template_variables["tools"] = tools
        template = self.template
        _require_read(template, template_variables)
        text = template.render(
            given, add_generation_prompt=add_generation_prompt, **template_variables
        )
        bos = self._text(self._model.tokenizer.bos)
        printed = bool(bos) and text.startswith(bos)
        return self.tokenize(text, add_bos=False if printed else None)

    @property
    def template(self) -> ChatTemplate:
        """The chat template, from the file or as given."""
        file, tokenizer = self._model.file, self._model.tokenizer
        source = self._template or optional(file.metadata, "tokenizer.chat_template", str, "")
        if not source:
            raise ModelFormatError(
                f"{file.path.name} has no chat template",
                remedy="use generate() with a plain prompt, or pass chat_template=",
            )
        return ChatTemplate(source, bos=self._text(tokenizer.bos), eos=self._text(tokenizer.eos))

    def _text(self, token: int | None) -> str:
        return "" if token is None else self.detokenize([token])


def without_missing(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return *options* without those of `MISSING`, which must ask for nothing.

    Raises:
        UnsupportedOp: One does not.
    """
    for name in MISSING.keys() & options.keys():
        if not asks_for_nothing(options[name], MISSING[name]):
            raise UnsupportedOp(f"npurt does not have {name} yet", remedy=f"leave {name} out")
    return {name: value for name, value in options.items() if name not in MISSING}


def asks_for_nothing(value: Any, neutral: Any) -> bool:
    """Return whether *value* is None or *neutral*; 0 is not False: ``logprobs=0`` asks for some."""
    alike = isinstance(value, bool) == isinstance(neutral, bool)
    return value is None or (alike and bool(value == neutral))


def _require_read(template: ChatTemplate, variables: Mapping[str, Any]) -> None:
    """Refuse variables that the template does not read: they would change nothing."""
    for name in variables:
        if name in template.variables:
            continue
        known = [*Options.__annotations__, *sorted(template.variables)]
        close = difflib.get_close_matches(name, known, 1)
        remedy = f"did you mean {close[0]}? Otherwise leave it out" if close else "leave it out"
        raise SettingError(f"the model's chat template does not read {name}", remedy=remedy)
