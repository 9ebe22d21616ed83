"""Render messages to a prompt with the chat template of a model file.

The template is a program that may come from a stranger; `sandbox` limits it.
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

# A template is code that runs on values of any type, so it can raise these errors too.
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
    """A compiled chat template.  May be used from several threads.

    Raises:
        ModelFormatError: *source* is not a template that npurt can run.
    """

    def __init__(self, source: str, *, bos: str | None, eos: str | None) -> None:
        """Compile *source*; *bos* and *eos* are the texts of those tokens."""
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
        """The names that the template reads from its caller."""
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

        The prompt has the model's markup, BOS included: encode it with ``add_bos=False``.

        Args:
            messages: Each is ``{"role": ..., "content": ...}``.  Content is text, a list of parts,
                or None beside ``tool_calls``.  Arguments of a call are passed on unchanged: most
                templates want a dict, DeepSeek's wants JSON text.
            add_generation_prompt: End the prompt with the start of the model's answer.
            tools: Descriptions of functions, as JSON schemas.
            variables: Other variables of the template, such as ``enable_thinking=False``.

        Raises:
            LayoutError: The messages are malformed, or the template refuses them.
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
                remedy="change the messages as it says",
            ) from error
        except _FAILURES as error:
            raise _broken(error) from error


def joined_parts(messages: Iterable[Any]) -> list[Any]:
    """Return *messages* with the parts of a content joined to one text, as most templates need it.

    What is not a message stays as it is, for `ChatTemplate.render` to refuse.

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
                remedy='pass parts {"type": "text", "text": ...} only; npurt reads neither images '
                "nor sound",
            )
    return {**message, "content": "".join(part["text"] for part in parts)}


def _plain(values: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return a copy of *values* of JSON types only, and its size in characters."""
    try:
        text = json.dumps(values, ensure_ascii=False)
        return json.loads(text), len(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise LayoutError(
            f"the messages hold what JSON cannot: {error}",
            remedy="use dicts, lists, strings, numbers, booleans and None only",
        ) from error


def _check(messages: Any) -> None:
    """Refuse messages that are not a conversation."""
    if not isinstance(messages, list) or not messages:
        raise _malformed("messages is not a list with something in it")
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
