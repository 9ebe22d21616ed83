"""Names of the module llama_cpp.llama_chat_format: formatters and handlers of chats.

A formatter converts messages to a prompt.  A handler receives the model and the arguments of a
chat, and returns the result.  A registered formatter or handler replaces the file's chat template
if its name is passed as *chat_format*.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from npurt.base import late
from npurt.compat.llama_cpp.calls import FORMAT, calls_of
from npurt.compat.llama_cpp.refused import refused_class, refused_function
from npurt.errors import SettingError, brief
from npurt.llm.decode.stops import stop_texts
from npurt.llm.text.named_templates import NAMED

Function = TypeVar("Function", bound=Callable[..., Any])

CHATML_CHAT_TEMPLATE, CHATML_BOS_TOKEN, CHATML_EOS_TOKEN = NAMED["chatml"], "<s>", "<|im_end|>"
LLAMA3_INSTRUCT_CHAT_TEMPLATE = NAMED["llama3"]
MISTRAL_INSTRUCT_CHAT_TEMPLATE = MIXTRAL_INSTRUCT_CHAT_TEMPLATE = NAMED["mistral"]
MISTRAL_INSTRUCT_BOS_TOKEN, MISTRAL_INSTRUCT_EOS_TOKEN = "<s>", "</s>"


@dataclass
class ChatFormatterResponse:
    """The result of a formatter.

    Attributes:
        prompt: The text of the prompt.
        stop: Texts that end the answer.
        stopping_criteria: A function that returns whether the answer ends.
        added_special: Whether the prompt contains the BOS token.
    """

    prompt: str
    stop: str | list[str] | None = None
    stopping_criteria: Any = None
    added_special: bool = False


class ChatFormatter(Protocol):
    """A function that converts messages to a prompt."""

    def __call__(self, *, messages: Any, **options: Any) -> ChatFormatterResponse:
        """Return the prompt and the conditions that end the answer."""


class LlamaChatCompletionHandler(Protocol):
    """A function that answers messages with a model."""

    def __call__(self, *, llama: Any, messages: Any, **options: Any) -> Any:
        """Return the result; arguments and result are those of `Llama.create_chat_completion`."""


class LlamaChatCompletionHandlerNotFoundException(Exception):
    """The error for a name without a handler."""


class LlamaChatCompletionHandlerRegistry:
    """The handlers of this process, by name."""

    _handlers: ClassVar[dict[str, Any]] = {}

    def register_chat_completion_handler(
        self, name: str, chat_handler: Any, overwrite: bool = False
    ) -> None:
        """Register *chat_handler* by *name*.

        Raises:
            SettingError: A handler has this name, and *overwrite* is False.
        """
        if name in self._handlers and not overwrite:
            raise SettingError(
                f"a chat handler {brief(name)} exists already", remedy="pass overwrite=True"
            )
        self._handlers[name] = chat_handler

    def unregister_chat_handler(self, name: str) -> None:
        """Remove the handler *name*.

        Raises:
            SettingError: No handler has this name.
        """
        if self._handlers.pop(name, None) is None:
            raise SettingError(
                f"there is no chat handler {brief(name)}", remedy="pass a registered name"
            )

    def get_chat_completion_handler_by_name(self, name: str) -> Any:
        """Return the handler *name*.

        Raises:
            LlamaChatCompletionHandlerNotFoundException: No handler has this name.
        """
        if name in self._handlers:
            return self._handlers[name]
        raise LlamaChatCompletionHandlerNotFoundException(
            f"there is no chat handler {brief(name)} among {sorted(self._handlers)}"
        )


def registered(name: str) -> Any:
    """Return the handler *name*, or None if no handler has this name."""
    return LlamaChatCompletionHandlerRegistry._handlers.get(name)


def get_chat_completion_handler(name: str) -> Any:
    """Return the handler *name*; see `get_chat_completion_handler_by_name`."""
    return LlamaChatCompletionHandlerRegistry().get_chat_completion_handler_by_name(name)


def register_chat_completion_handler(name: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a handler by *name*."""

    def register(handler: Function) -> Function:
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return handler

    return register


def register_chat_format(name: str) -> Callable[[Function], Function]:
    """Return a decorator that registers a formatter by *name*."""

    def register(formatter: Function) -> Function:
        handler = chat_formatter_to_chat_completion_handler(formatter)
        LlamaChatCompletionHandlerRegistry().register_chat_completion_handler(name, handler)
        return formatter

    return register


def chat_formatter_to_chat_completion_handler(
    chat_formatter: Callable[..., ChatFormatterResponse],
) -> Callable[..., Any]:
    """Return a handler that answers chats with the prompts of *chat_formatter*."""

    def handler(*, llama: Any, messages: Any, **options: Any) -> Any:
        arguments = inspect.signature(llama.create_chat_completion).parameters
        given = {name: each.default for name, each in arguments.items()} | options
        functions = {
            name: given[name] for name in ("functions", "function_call", "tools", "tool_choice")
        }
        calls = calls_of(**functions, marked=False)
        made: ChatFormatterResponse

        def render(kept: Any) -> list[int]:
            nonlocal made
            made = chat_formatter(messages=kept, **functions)
            prompt, bos = made.prompt.encode(), not made.added_special
            ids: list[int] = llama.tokenize(prompt, add_bos=bos, special=True)
            return ids

        ids = llama._llm.fit(messages, render, given["max_tokens"])
        stops = [*stop_texts(given["stop"]), *stop_texts(made.stop)]
        return llama._answer(ids, calls, stops, given, made.stopping_criteria)

    return handler


class Jinja2ChatFormatter:
    """A formatter that renders a chat template.

    Args:
        template: The Jinja source of the template.
        eos_token: The text of EOS, which ends an answer.
        bos_token: The text of BOS, a variable of the template.
        add_generation_prompt: End the prompt with the start of an answer.
        stop_token_ids: Tokens that end an answer and are part of it.

    Raises:
        ModelFormatError: npurt cannot run the template.
    """

    def __init__(
        self, template: str, eos_token: str, bos_token: str, add_generation_prompt: bool = True,
        stop_token_ids: Iterable[int] | None = None,
    ) -> None:  # fmt: skip
        with late.imports():
            from npurt.llm.text.chat import ChatTemplate

        self.template, self.eos_token, self.bos_token = template, eos_token, bos_token
        self.add_generation_prompt = add_generation_prompt
        self.stop_token_ids = None if stop_token_ids is None else set(stop_token_ids)
        self._template = ChatTemplate(template, bos=bos_token, eos=eos_token)

    def __call__(
        self, *, messages: Sequence[Mapping[str, Any]], **options: Any
    ) -> ChatFormatterResponse:
        """Return the prompt; *options* are variables of the template."""
        with late.imports():
            from npurt.llm.text.chat import joined_parts

        prompt = self._template.render(
            joined_parts(messages), add_generation_prompt=self.add_generation_prompt, **options
        )
        ends = self.stop_token_ids
        criteria = None if ends is None else (lambda tokens, _: int(tokens[-1]) in ends)
        return ChatFormatterResponse(prompt, [self.eos_token], criteria, added_special=True)

    def to_chat_handler(self) -> Callable[..., Any]:
        """Return a handler that answers chats with the prompts of this formatter."""
        return chat_formatter_to_chat_completion_handler(self)


def hf_tokenizer_config_to_chat_formatter(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> Jinja2ChatFormatter:
    """Return a formatter for the content of tokenizer_config.json.

    Raises:
        SettingError: *tokenizer_config* lacks the template or the text of BOS or EOS.
    """
    template, bos, eos = (
        tokenizer_config.get(name) for name in ("chat_template", "bos_token", "eos_token")
    )
    if not (isinstance(template, str) and isinstance(bos, str) and isinstance(eos, str)):
        raise SettingError(
            "the configuration lacks chat_template, bos_token or eos_token, or one is no str",
            remedy="pass all three as str",
        )
    return Jinja2ChatFormatter(template, eos, bos, add_generation_prompt)


def hf_tokenizer_config_to_chat_completion_handler(
    tokenizer_config: Mapping[str, Any], add_generation_prompt: bool = True
) -> Callable[..., Any]:
    """Return a handler for the content of tokenizer_config.json.

    For the errors, see `hf_tokenizer_config_to_chat_formatter`.
    """
    return hf_tokenizer_config_to_chat_formatter(
        tokenizer_config, add_generation_prompt
    ).to_chat_handler()


def chatml_function_calling(*, llama: Any, messages: Any, **options: Any) -> Any:
    """Answer a chat; the model has ``chat_format="chatml-function-calling"``.

    Raises:
        SettingError: The model was opened with another *chat_format*.
    """
    if llama.chat_format != FORMAT:
        raise SettingError(
            f"chat_format is {brief(llama.chat_format)}",
            remedy=f"open the model with chat_format={FORMAT!r}",
        )
    return llama.create_chat_completion(messages, **options)


def _format(name: str, bos: str, eos: str) -> Callable[..., ChatFormatterResponse]:
    """Return a formatter with npurt's chat template *name*."""

    def formatter(messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatFormatterResponse:
        return Jinja2ChatFormatter(NAMED[name], eos, bos)(messages=messages)

    formatter.__doc__ = f"Return the prompt of *messages* with npurt's chat template {name}."
    return formatter


format_chatml = _format("chatml", "<s>", "<|im_end|>")
format_gemma = _format("gemma", "<bos>", "<end_of_turn>")
format_llama2 = _format("llama2", "<s>", "</s>")
format_llama3 = _format("llama3", "<|begin_of_text|>", "<|eot_id|>")
format_mistral_instruct = _format("mistral", "<s>", "</s>")
format_zephyr = _format("zephyr", "<s>", "</s>")


def _other(name: str) -> Any:
    return refused_function(name, "pass a Jinja template: Llama(chat_format=SOURCE)")


format = _other("format")
format_alpaca, format_qwen = _other("format_alpaca"), _other("format_qwen")
format_oasst_llama, format_baichuan2 = _other("format_oasst_llama"), _other("format_baichuan2")
format_baichuan, format_openbuddy = _other("format_baichuan"), _other("format_openbuddy")
format_redpajama_incite = _other("format_redpajama_incite")
format_snoozy, format_phind = _other("format_snoozy"), _other("format_phind")
format_intel, format_open_orca = _other("format_intel"), _other("format_open_orca")
format_mistrallite, format_pygmalion = _other("format_mistrallite"), _other("format_pygmalion")
format_chatglm3, format_openchat = _other("format_chatglm3"), _other("format_openchat")
format_saiga = _other("format_saiga")


def _uncalled(name: str) -> Any:
    return refused_function(name, f"open the model with chat_format={FORMAT!r}")


functionary_chat_handler = _uncalled("functionary_chat_handler")
functionary_v1_v2_chat_handler = _uncalled("functionary_v1_v2_chat_handler")


def _elsewhere(name: str) -> Any:
    return refused_function(name, "omit it: npurt uses the file's chat template")


guess_chat_format_from_gguf_metadata = _elsewhere("guess_chat_format_from_gguf_metadata")
hf_autotokenizer_to_chat_formatter = _elsewhere("hf_autotokenizer_to_chat_formatter")
hf_autotokenizer_to_chat_completion_handler = _elsewhere(
    "hf_autotokenizer_to_chat_completion_handler"
)


def _seeing(name: str) -> Any:
    return refused_class(name, "pass text only: npurt does not support images")


Gemma4ChatHandler, Llama3VisionAlpha = _seeing("Gemma4ChatHandler"), _seeing("Llama3VisionAlpha")
Llama3VisionAlphaChatHandler = _seeing("Llama3VisionAlphaChatHandler")
Llava15ChatHandler = _seeing("Llava15ChatHandler")
Llava16ChatHandler = _seeing("Llava16ChatHandler")
MTMDChatHandler = _seeing("MTMDChatHandler")
MiniCPMv26ChatHandler = _seeing("MiniCPMv26ChatHandler")
MoondreamChatHandler = _seeing("MoondreamChatHandler")
NanoLlavaChatHandler = _seeing("NanoLlavaChatHandler")
ObsidianChatHandler = _seeing("ObsidianChatHandler")
Qwen25VLChatHandler = _seeing("Qwen25VLChatHandler")
