"""Generate text with a model: `generate` takes a prompt, `chat` takes messages."""

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from npurt.base import late
from npurt.errors import LayoutError, ModelFormatError, SettingError, brief
from npurt.llm.decode.generate import Generation, Generator
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.decode.options import GenerationRequest, Options, Stop, without_missing
from npurt.llm.decode.sampler import Criterion, Processor, TokenSampler
from npurt.llm.file.metadata import optional
from npurt.llm.text.turns import fitted
from npurt.runtime.open.arguments import flag, integer, listed

if TYPE_CHECKING:  # templates are imported with the first chat: jinja2 takes 40 ms
    from npurt.llm.text.chat import ChatTemplate

Prompt = str | Sequence[int]
Message = Mapping[str, Any]
MAX_TEXTS = 1000  # completions of one prompt


class TextGenerator:
    """Generates completions of prompts and of chat messages: the methods of `Llama` for text.

    Args:
        generator: The state that successive generations share.
        seed: The seed of sampling; None chooses a random seed for each generation.
        template: Jinja source of the chat template; None uses the file's template.

    Attributes:
        generator, seed: As in the arguments; *seed* may be changed.
        model: The model.
    """

    def __init__(self, generator: Generator, *, seed: int | None, template: str | None) -> None:
        self.generator = generator
        self.model = generator.context.model
        self.seed = seed
        self._template = template
        self._has_left_out = False  # turns of a conversation

    # --- Tokens ---------------------------------------------------------------------------------

    def tokenize(self, text: str, add_bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the ids of *text*; see `Tokenizer.encode`."""
        return self.model.tokenizer.encode(text, add_bos=add_bos, special=special)

    def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of *ids*."""
        return self.model.tokenizer.decode(self.model.valid(ids))

    # --- Generation -----------------------------------------------------------------------------

    @overload
    def generate(
        self, prompt: Prompt, *, n: Literal[1] | None = None, echo: bool | None = False,
        stream: Literal[False] = False, **options: Unpack[Options],
    ) -> str: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Prompt, *, n: Literal[1] | None = None, echo: bool | None = False,
        stream: Literal[True], **options: Unpack[Options],
    ) -> Iterator[str]: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Prompt, *, n: Literal[1] | None = None, echo: bool | None = False,
        stream: bool, **options: Unpack[Options],
    ) -> str | Iterator[str]: ...  # fmt: skip

    @overload
    def generate(
        self, prompt: Prompt, *, n: int, echo: bool | None = False, **options: Unpack[Options]
    ) -> str | list[str]: ...

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float | None = 0.8,
        top_k: int | None = 40,
        top_p: float | None = 0.95,
        min_p: float | None = 0.05,
        repeat_penalty: float | None = 1.0,
        seed: int | None = None,
        stop: Stop | None = None,
        typical_p: float | None = 1.0,
        top_n_sigma: float | None = -1.0,
        xtc_probability: float | None = 0.0,
        xtc_threshold: float | None = 0.1,
        dry_multiplier: float | None = 0.0,
        dry_base: float | None = 1.75,
        dry_allowed_length: int | None = 2,
        dry_penalty_last_n: int | None = 64,
        dry_sequence_breakers: Sequence[str] | None = None,
        frequency_penalty: float | None = 0.0,
        presence_penalty: float | None = 0.0,
        repeat_last_n: int | None = 64,
        logit_bias: Mapping[int, float] | None = None,
        ignore_eos: bool | None = False,
        min_tokens: int | None = 0,
        logits_processor: Processor | Sequence[Processor] | None = None,
        stopping_criteria: Criterion | Sequence[Criterion] | None = None,
        logprobs: bool | int | None = None,
        top_logprobs: int | None = None,
        grammar: Grammar | str | None = None,
        response_format: Mapping[str, Any] | None = None,
        special: bool | None = None,
        n: int | None = 1,
        echo: bool | None = False,
        stream: bool = False,
        **unknown: Any,
    ) -> str | list[str] | Iterator[str]:
        """Return a completion of *prompt*, which is a text or token ids.

        The longest common prefix of the prompt and the cached tokens is not evaluated again.  A
        second generation may begin while a stream is open; the next step of that stream then raises
        SettingError.

        Args:
            max_tokens: The largest number of tokens to generate.  None or -1 generates up to an end
                token, or until the context is full.
            temperature: 0 always chooses the most probable token.
            top_k, top_p, min_p, typical_p, top_n_sigma, xtc_probability, xtc_threshold: Remove
                candidates; see `Sampling`.
            repeat_penalty, frequency_penalty, presence_penalty, repeat_last_n, dry_multiplier,
                dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers: Penalise
                tokens that occur in the prompt or the completion; see `Sampling`.
            logit_bias: Maps token ids to numbers that are added to their logits; -inf excludes a
                token.
            seed: The seed of this generation; None uses the model's seed, -1 chooses a random seed.
            stop: Texts and token ids that end the completion, which does not include them.
            ignore_eos: Never sample an end token.
            min_tokens: Do not sample end tokens and the ids in *stop* before the completion has
                this number of tokens.  Stop texts can still end the completion earlier.
            logits_processor: A function that takes the ids so far and the logits, as numpy arrays,
                and returns logits; or a list of such functions.
            stopping_criteria: A function that takes the arguments of *logits_processor* and returns
                True to end the completion; or a list of such functions.
            logprobs: Whether to store the log probabilities of the tokens in ``timing.logprobs``.
                They are computed from the model's logits, before any sampler.  A number also sets
                *top_logprobs*.  Tokens after the beginning of a stop text are left out.
            top_logprobs: The number of likeliest tokens to store with each token.
            grammar: The grammar of the completion: an `npurt.Grammar`, or GBNF.
            response_format: As in OpenAI's API and llama-cpp-python: ``{"type": "json_object"}``,
                which may have a ``"schema"``, ``{"type": "json_schema", "json_schema": {"schema":
                ...}}`` or ``{"type": "text"}``.
            special: Whether the text contains control tokens, such as ``[TOOL_CALLS]``.  The
                default is False.
            n: The number of completions, with the seeds *seed*, *seed* + 1 and so on.  Several
                completions are returned as a list; *stream* allows only one.  ``timings`` has the
                counts and log probabilities of each completion, ``timing`` of the last completion.
            echo: Begin each completion with the prompt.
            stream: Return an iterator of pieces of text instead of the whole text.
            unknown: Options of other libraries.  They raise an error unless their value is neutral.

        Raises:
            ContextFull: The prompt is longer than the context.
            GrammarError: The grammar is wrong, or allows no next token.
            NotOffloaded: The model is *strict*, and its device failed or computed a wrong result.
            SettingError: The value of an option is invalid, or another thread is using the model.
            UnsupportedOp: npurt does not support an option.
        """
        given = locals()
        options = {name: given[name] for name in Options.__annotations__}
        count = 1 if n is None else integer("n", n, 1, MAX_TEXTS)
        stream, echo = flag("stream", stream), flag("echo", echo)
        if stream and count > 1:
            raise SettingError(f"n is {count} with stream", remedy="use stream only with n=1")
        request = GenerationRequest.of(options | unknown, self.seed)
        ids = self.tokenize(prompt) if isinstance(prompt, str) else self.model.valid(prompt)
        begin = "" if not echo else prompt if isinstance(prompt, str) else self.detokenize(ids)
        requests = [request.nth(i) for i in range(count)]
        texts = (self._pieces(each, ids, begin) for each in requests)
        if stream:
            return next(texts)
        with self.model.lock:
            written, timings = [], []
            for pieces in texts:
                written.append("".join(pieces))
                timings.append(self.generator.timing)
            self.generator.timings = tuple(timings)
        return written if count > 1 else written[0]

    def _pieces(self, request: GenerationRequest, ids: list[int], begin: str) -> Iterator[str]:
        """Return an iterator of *begin* and the pieces of a completion."""
        sampler = request.sampler(self.model.tokenizer, len(ids), TokenSampler)
        pieces = Generation(
            self.generator, ids, sampler, request.stops, request.max_tokens,
            stop_ids=request.stop_ids, top_logprobs=request.top_logprobs, special=request.special,
        )  # fmt: skip
        return _after(begin, pieces) if begin else iter(pieces)

    # A signature cannot have a TypedDict and other keywords, so these overloads repeat the options.
    @overload
    def chat(
        self, /, messages: Sequence[Message], *, stream: Literal[False] = False,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        enable_thinking: bool | None = ..., n: Literal[1] | None = ..., echo: bool | None = ...,
        max_tokens: int | None = ..., temperature: float | None = ..., top_k: int | None = ...,
        top_p: float | None = ..., min_p: float | None = ..., repeat_penalty: float | None = ...,
        seed: int | None = ..., stop: Stop | None = ..., typical_p: float | None = ...,
        top_n_sigma: float | None = ..., xtc_probability: float | None = ...,
        xtc_threshold: float | None = ..., dry_multiplier: float | None = ...,
        dry_base: float | None = ..., dry_allowed_length: int | None = ...,
        dry_penalty_last_n: int | None = ..., dry_sequence_breakers: Sequence[str] | None = ...,
        frequency_penalty: float | None = ..., presence_penalty: float | None = ...,
        repeat_last_n: int | None = ..., logit_bias: Mapping[int, float] | None = ...,
        ignore_eos: bool | None = ..., min_tokens: int | None = ...,
        logits_processor: Processor | Sequence[Processor] | None = ...,
        stopping_criteria: Criterion | Sequence[Criterion] | None = ...,
        logprobs: bool | int | None = ..., top_logprobs: int | None = ...,
        grammar: Grammar | str | None = ..., response_format: Mapping[str, Any] | None = ...,
        special: bool | None = ...,
        **template_variables: Any,
    ) -> str: ...  # fmt: skip

    @overload
    def chat(
        self, /, messages: Sequence[Message], *, stream: Literal[True],
        tools: Sequence[Mapping[str, Any]] | None = ...,
        enable_thinking: bool | None = ..., n: Literal[1] | None = ..., echo: bool | None = ...,
        max_tokens: int | None = ..., temperature: float | None = ..., top_k: int | None = ...,
        top_p: float | None = ..., min_p: float | None = ..., repeat_penalty: float | None = ...,
        seed: int | None = ..., stop: Stop | None = ..., typical_p: float | None = ...,
        top_n_sigma: float | None = ..., xtc_probability: float | None = ...,
        xtc_threshold: float | None = ..., dry_multiplier: float | None = ...,
        dry_base: float | None = ..., dry_allowed_length: int | None = ...,
        dry_penalty_last_n: int | None = ..., dry_sequence_breakers: Sequence[str] | None = ...,
        frequency_penalty: float | None = ..., presence_penalty: float | None = ...,
        repeat_last_n: int | None = ..., logit_bias: Mapping[int, float] | None = ...,
        ignore_eos: bool | None = ..., min_tokens: int | None = ...,
        logits_processor: Processor | Sequence[Processor] | None = ...,
        stopping_criteria: Criterion | Sequence[Criterion] | None = ...,
        logprobs: bool | int | None = ..., top_logprobs: int | None = ...,
        grammar: Grammar | str | None = ..., response_format: Mapping[str, Any] | None = ...,
        special: bool | None = ...,
        **template_variables: Any,
    ) -> Iterator[str]: ...  # fmt: skip

    @overload
    def chat(
        self, /, messages: Sequence[Message], *, stream: bool,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        enable_thinking: bool | None = ..., n: Literal[1] | None = ..., echo: bool | None = ...,
        max_tokens: int | None = ..., temperature: float | None = ..., top_k: int | None = ...,
        top_p: float | None = ..., min_p: float | None = ..., repeat_penalty: float | None = ...,
        seed: int | None = ..., stop: Stop | None = ..., typical_p: float | None = ...,
        top_n_sigma: float | None = ..., xtc_probability: float | None = ...,
        xtc_threshold: float | None = ..., dry_multiplier: float | None = ...,
        dry_base: float | None = ..., dry_allowed_length: int | None = ...,
        dry_penalty_last_n: int | None = ..., dry_sequence_breakers: Sequence[str] | None = ...,
        frequency_penalty: float | None = ..., presence_penalty: float | None = ...,
        repeat_last_n: int | None = ..., logit_bias: Mapping[int, float] | None = ...,
        ignore_eos: bool | None = ..., min_tokens: int | None = ...,
        logits_processor: Processor | Sequence[Processor] | None = ...,
        stopping_criteria: Criterion | Sequence[Criterion] | None = ...,
        logprobs: bool | int | None = ..., top_logprobs: int | None = ...,
        grammar: Grammar | str | None = ..., response_format: Mapping[str, Any] | None = ...,
        special: bool | None = ...,
        **template_variables: Any,
    ) -> str | Iterator[str]: ...  # fmt: skip

    @overload
    def chat(
        self, /, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = ...,
        enable_thinking: bool | None = ..., n: int, echo: bool | None = ...,
        max_tokens: int | None = ..., temperature: float | None = ..., top_k: int | None = ...,
        top_p: float | None = ..., min_p: float | None = ..., repeat_penalty: float | None = ...,
        seed: int | None = ..., stop: Stop | None = ..., typical_p: float | None = ...,
        top_n_sigma: float | None = ..., xtc_probability: float | None = ...,
        xtc_threshold: float | None = ..., dry_multiplier: float | None = ...,
        dry_base: float | None = ..., dry_allowed_length: int | None = ...,
        dry_penalty_last_n: int | None = ..., dry_sequence_breakers: Sequence[str] | None = ...,
        frequency_penalty: float | None = ..., presence_penalty: float | None = ...,
        repeat_last_n: int | None = ..., logit_bias: Mapping[int, float] | None = ...,
        ignore_eos: bool | None = ..., min_tokens: int | None = ...,
        logits_processor: Processor | Sequence[Processor] | None = ...,
        stopping_criteria: Criterion | Sequence[Criterion] | None = ...,
        logprobs: bool | int | None = ..., top_logprobs: int | None = ...,
        grammar: Grammar | str | None = ..., response_format: Mapping[str, Any] | None = ...,
        special: bool | None = ...,
        **template_variables: Any,
    ) -> str | list[str]: ...  # fmt: skip

    def chat(
        self,
        /,
        messages: Sequence[Message],
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        n: int | None = 1,
        echo: bool | None = False,
        **options: Any,
    ) -> str | list[str] | Iterator[str]:
        """Return the model's answer to *messages*, which the chat template turns into a prompt.

        If the conversation is too long for the context, its oldest turns are left out, with a
        warning the first time; system messages remain, and so do calls of tools beside their
        results.  To get ContextFull instead, pass `apply_chat_template(messages)` to `generate`.

        A message is a dict with ``role`` and ``content``.  The content is a text, or a list of
        parts ``{"type": "text", "text": ...}``, which are joined.

        Args:
            stream, n, echo: As for `generate`.
            tools: Functions that the model may call, as JSON schemas.  The returned text contains
                the model's calls as it writes them; `parse_answer` finds them.  If control tokens
                mark the calls, *special* is True by default.
            enable_thinking: Whether a reasoning model writes its reasoning before the answer.
            options: The options of `generate`, and variables of the template.

        Raises:
            ContextFull: The last turn alone is longer than the context.
            LayoutError: *messages* is not a list of messages, or the template refuses a message.
            ModelFormatError: The file has no chat template, or its template does not work.
            SettingError: The template does not read *enable_thinking* or a variable.
            UnsupportedOp: npurt does not support an option.
        """
        variables = without_missing(options)
        options = {
            name: variables.pop(name) for name in Options.__annotations__ if name in variables
        }
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        ids = self.fit(
            messages,
            lambda kept: self.apply_chat_template(kept, tools=tools, **variables),
            options.get("max_tokens"),
        )
        if options.get("special") is None and _tools(tools):
            options["special"] = self.marks_calls()
        chosen: Any = n  # Any, because the overloads distinguish 1 from other numbers
        return self.generate(ids, n=chosen, echo=echo, stream=stream, **options)

    def marks_calls(self) -> bool:
        """Return whether control tokens mark the model's calls of functions."""
        with late.imports():
            from npurt.llm.decode.calls.choose import format_of

        tokenizer = self.model.tokenizer
        markup = format_of(self.template.source).markup
        return any(tokenizer.decode([token]) in markup for token in tokenizer.control)

    def parse_answer(
        self, text: str, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> dict[str, Any]:
        """Return the message of an answer of `chat`, with the calls of functions in it.

        The message has ``role``, ``content``, ``tool_calls`` as in OpenAI's API if the answer
        calls functions, and ``reasoning_content`` if it has a thought.  It can be appended to the
        messages of the next `chat`.

        Args:
            text: The whole answer.
            tools: As for `chat`.  An answer has no calls but of these functions.

        Raises:
            LayoutError: *text* is not a str.
            ModelFormatError: The file has no chat template.
            SettingError: *tools* is not a list of JSON schemas.
        """
        with late.imports():
            from npurt.llm.decode.calls.message import message_of

        if not isinstance(text, str):
            raise LayoutError(f"{brief(text)} is no answer", remedy="pass the text of the answer")
        cut = self.generator.timing.finish in ("length", "context")
        return message_of(text, _tools(tools), self.template.source, cut=cut)

    def fit(
        self,
        messages: Sequence[Message],
        render: Callable[[Sequence[Message]], list[int]],
        max_tokens: int | None = None,
        n_ctx: int | None = None,
    ) -> list[int]:
        """Return the prompt that *render* makes of *messages*, without turns that do not fit.

        The first time that turns are left out, this gives a warning.
        """
        if not isinstance(messages, str | Mapping):
            with contextlib.suppress(TypeError):  # *render* refuses other values
                messages = list(messages)
        count, ids = fitted(messages, render, n_ctx or self.model.n_ctx, max_tokens)
        if count and not self._has_left_out:
            self._has_left_out = True
            warnings.warn(
                f"a conversation is longer than the context: its oldest turns ({count} now) are "
                "left out of the prompt; a larger n_ctx (-c) keeps more",
                stacklevel=3,
            )
        return ids

    def apply_chat_template(
        self,
        /,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_variables: Any,
    ) -> list[int]:
        """Return the token ids of the prompt for *messages*, as `chat` uses it.

        Args:
            tools: As for `chat`.
            add_generation_prompt: End the prompt with the start of the model's answer.
            template_variables: Variables of the template, such as *enable_thinking*.

        Raises:
            LayoutError: *messages* is not a list of messages, or the template refuses a message.
            ModelFormatError: The file has no chat template, or its template does not work.
            SettingError: The template does not read a variable.
        """
        if isinstance(messages, str | Mapping) or not isinstance(messages, Iterable):
            raise LayoutError(
                f"messages are {brief(messages)}",
                remedy='pass a list such as [{"role": "user", "content": "Hello"}]',
            )
        with late.imports():
            from npurt.llm.text.chat import joined_parts

        given = joined_parts(listed("messages", messages, "a list of dicts"))
        if functions := _tools(tools):
            template_variables["tools"] = functions
        template = self.template
        _require_read(template, template_variables)
        text = template.render(
            given, add_generation_prompt=add_generation_prompt, **template_variables
        )
        bos = self._text(self.model.tokenizer.bos)
        printed = bool(bos) and text.startswith(bos)
        return self.tokenize(text, add_bos=False if printed else None)

    @property
    def template(self) -> "ChatTemplate":
        """The chat template, from the argument or else from the file."""
        file, tokenizer = self.model.file, self.model.tokenizer
        source = self._template or optional(file.metadata, "tokenizer.chat_template", str, "")
        if not source:
            raise ModelFormatError(
                f"{file.path.name} has no chat template",
                remedy="use generate() with a plain prompt, or pass chat_template=",
            )
        with late.imports():
            from npurt.llm.text.chat import ChatTemplate

        return ChatTemplate(source, bos=self._text(tokenizer.bos), eos=self._text(tokenizer.eos))

    def _text(self, token: int | None) -> str:
        return "" if token is None else self.detokenize([token])


def _after(begin: str, pieces: Iterable[str]) -> Iterator[str]:
    yield begin
    yield from pieces


def _require_read(template: "ChatTemplate", variables: Mapping[str, Any]) -> None:
    """Raise SettingError if the template does not read one of *variables* except tools."""
    unread = [name for name in variables if name not in template.variables | {"tools"}]
    if unread:
        import difflib

        name = unread[0]
        known = [*Options.__annotations__, *sorted(template.variables)]
        close = difflib.get_close_matches(name, known, 1)
        remedy = f"did you mean {close[0]}? Otherwise leave it out" if close else "leave it out"
        raise SettingError(f"the model's chat template does not read {name}", remedy=remedy)


def _tools(tools: Any) -> list[Any]:
    """Return the argument *tools* as a list; an empty list for None.

    Raises:
        SettingError: A member is not a JSON schema.
    """
    given = [] if tools is None else listed("tools", tools, "a list of functions as JSON schemas")
    if not all(isinstance(each, Mapping) for each in given):
        raise SettingError(
            f"tools is {brief(tools)}", remedy="tools must be a list of functions as JSON schemas"
        )
    return given
