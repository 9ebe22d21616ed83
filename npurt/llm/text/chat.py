"""Render messages to a prompt with the chat template of a model file.

The template is an untrusted program; `sandbox` limits its time and memory.
"""

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.meta import find_undeclared_variables

from npurt.errors import LayoutError, ModelFormatError, brief
from npurt.llm.text.sandbox import BUDGET, PER_INPUT, BoundedEnvironment, Meter

MAX_SOURCE = 1 << 16  # characters; the longest chat templates have some 30,000

# Templates are code and can raise any of these errors.
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


class _Refusal(TemplateError):
    """The template called raise_exception()."""


class ChatTemplate:
    """A compiled chat template.  Several threads may use it.

    Raises:
        ModelFormatError: *source* is not a template that npurt can run.
    """

    def __init__(self, source: str, *, bos: str | None, eos: str | None) -> None:
        """Compile *source*; *bos* and *eos* are the texts of the BOS and EOS tokens."""
        if len(source) > MAX_SOURCE:
            raise _broken(f"it has {len(source)} characters, above {MAX_SOURCE}")
        self.source = source
        self._tokens = {"bos_token": bos or "", "eos_token": eos or ""}
        self._environment = BoundedEnvironment()
        self._environment.globals["raise_exception"] = _refuse
        self._environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = self._environment.build(source)
        except _FAILURES as error:
            raise _broken(error) from error

    @functools.cached_property
    def variables(self) -> frozenset[str]:
        """The names of the variables that the template reads from its caller."""
        tree = self._environment.parse(self.source)
        return frozenset(find_undeclared_variables(tree)) - self._tokens.keys()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt for *messages*.

        The prompt contains the model's markup, BOS included: encode it with ``add_bos=False``.

        Args:
            messages: Dicts ``{"role": ..., "content": ...}``.  The content is text, a list of
                parts, or None if the message has ``tool_calls``.  The arguments of a call are
                passed on unchanged: most templates expect a dict, DeepSeek's expects JSON text.
            add_generation_prompt: End the prompt with the start of the model's answer.
            tools: Descriptions of functions, as JSON schemas.
            variables: Other variables of the template, such as ``enable_thinking=False``.

        Raises:
            LayoutError: The messages are malformed, or the template raises an error about them.
            ModelFormatError: The template fails, or exceeds its budget.
        """
        given: dict[str, Any] = {"messages": messages, "tools": tools or None}
        given["add_generation_prompt"] = add_generation_prompt
        plain, size = _plain(variables | given)
        _check(plain["messages"])
        try:
            self._environment.meter = Meter(BUDGET + PER_INPUT * size)
            return self._template.render(self._tokens | plain)
        except _Refusal as error:
            raise LayoutError(
                f"the chat template refuses these messages: {error!s:.300}",
                remedy="change the messages accordingly",
            ) from error
        except _FAILURES as error:
            raise _broken(error) from error


def joined_parts(messages: Iterable[Any]) -> list[Any]:
    """Return *messages* with each list of text parts joined into one text.

    Most templates require one text.  Malformed messages are returned unchanged;
    `ChatTemplate.render` raises the error.

    Raises:
        LayoutError: A part is not text.
    """
    return [_joined(i, message) for i, message in enumerate(messages)]


def _joined(i: int, message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    parts = message.get("content")
    if not isinstance(parts, list | tuple) or not all(isinstance(part, dict) for part in parts):
        return dict(message)
    for part in parts:
        kind = part.get("type")
        text = isinstance(kind, str) and kind == "text"
        if not text or not isinstance(part.get("text"), str):
            raise LayoutError(
                f"the content of message {i} has a part of type {brief(kind)}"
                if not text
                else f"the content of message {i} has a part without text",
                remedy='pass only parts {"type": "text", "text": ...}; npurt supports neither '
                "images nor audio",
            )
    return {**message, "content": "".join(part["text"] for part in parts)}


def _plain(values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a copy of *values* that contains only JSON types, and its size in characters."""
    try:
        text = json.dumps(values, ensure_ascii=False)
        return json.loads(text), len(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise LayoutError(
            f"the messages hold a value that JSON cannot represent: {error}",
            remedy="use only dicts, lists, strings, numbers, booleans and None",
        ) from error


def _check(messages: Any) -> None:
    """Raise LayoutError unless *messages* is a list of well-formed messages."""
    if not isinstance(messages, list) or not messages:
        raise _malformed("messages is empty or not a list")
    for i, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _malformed(f"message {i} has no role")
        content = message.get("content")
        if content is None and not message.get("tool_calls"):
            raise _malformed(f"message {i} has no content")
        if not (content is None or isinstance(content, str) or _are_dicts(content)):
            raise _malformed(f"the content of message {i} is neither text nor a list of parts")
        if not _are_dicts(message.get("tool_calls") or []):
            raise _malformed(f"the tool_calls of message {i} are not a list of dicts")


def _are_dicts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


def _malformed(what: str) -> LayoutError:
    return LayoutError(what, remedy='pass messages such as [{"role": "user", "content": "Hello"}]')


def _broken(error: object) -> ModelFormatError:
    reason = str(error) or type(error).__name__
    return ModelFormatError(
        f"the model's chat template does not work: {reason:.300}",
        remedy="pass another template, or build the prompt yourself and generate() from it",
    )


def _refuse(message: str) -> NoReturn:
    raise _Refusal(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
