"""Render messages to a prompt with the chat template of a model file.

The template is an untrusted program; `sandbox` limits its time and memory.
"""

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.meta import find_undeclared_variables

from npurt.errors import LayoutError, ModelFormatError, brief
from npurt.llm.text import tool_prompt
from npurt.llm.text.sandbox import BUDGET, PER_INPUT, BoundedEnvironment, Meter

PROBE = '{"probe": "value"}'  # arguments of a call
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
        self._environment.globals["strftime_now"] = self._strftime_now
        try:
            self._template = self._environment.build(source)
        except _FAILURES as error:
            raise _broken(error) from error

    def _strftime_now(self, format: str) -> str:
        self._environment.charge_time_format(format)
        return _strftime_now(format)

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
                parts, or None if the message has ``tool_calls``.  The arguments of a call are a
                dict or JSON text; the template receives the form that it expects.  The role
                ``developer`` becomes ``system`` unless the template mentions ``developer``.
            add_generation_prompt: End the prompt with the start of the model's answer.
            tools: Descriptions of functions, as JSON schemas.  If the template does not read
                tools, the system message describes them (`tool_prompt`).
            variables: Other variables of the template, such as ``enable_thinking=False``.  If
                the template reads ``enable_thinking``, its default is True; the default of
                ``date_string`` is today, as in llama.cpp.

        Raises:
            LayoutError: The messages are malformed, or the template raises an error about them.
            ModelFormatError: The template fails, or exceeds its budget.
        """
        given: dict[str, Any] = {"messages": messages, "tools": tools or None}
        given["add_generation_prompt"] = add_generation_prompt
        plain, size = _plain(self._defaults() | variables | given)
        _check(plain["messages"])
        plain["messages"] = [self._readable(message) for message in plain["messages"]]
        if plain["tools"] and "tools" not in self.variables:
            return self._described(plain, size)
        return self._rendered(plain, size)

    def _defaults(self) -> dict[str, Any]:
        """Return the values of variables that the caller need not set."""
        today = datetime.now().strftime("%d %b %Y")
        values = {"date_string": today, "enable_thinking": True}
        return {name: value for name, value in values.items() if name in self.variables}

    def _described(self, plain: dict[str, Any], size: int) -> str:
        """Render messages whose tools the template does not read."""
        introduction = tool_prompt.described(plain.pop("tools"))
        messages, size = plain["messages"], size + len(introduction)
        try:
            told = tool_prompt.told(messages, introduction, system=True)
            text = self._rendered(plain | {"messages": told}, size)
            if introduction.strip() in text:
                return text
        except LayoutError:
            if any(message["role"] == "system" for message in messages):
                raise
        # The template refuses or omits system messages.
        told = tool_prompt.told(messages, introduction, system=False)
        return self._rendered(plain | {"messages": told}, size)

    def _rendered(self, plain: dict[str, Any], size: int) -> str:
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

    # --- Calls in messages ----------------------------------------------------------------------

    def _readable(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return *message* in the form that the template expects; a missing content becomes ""."""
        made = {key: value for key, value in message.items() if value is not None}
        if made["role"] == "developer" and "developer" not in self.source:
            made["role"] = "system"
        calls = made.pop("tool_calls", None)
        if calls:
            made["tool_calls"] = [self._readable_call(call) for call in calls]
        made.setdefault("content", "")
        return made

    def _readable_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call.get("function")
        if not isinstance(function, dict):
            return call
        arguments = function.get("arguments")
        if isinstance(arguments, str) and not self._reads_text:
            with contextlib.suppress(ValueError, RecursionError):
                parsed = json.loads(arguments or "{}")
                if isinstance(parsed, dict):
                    arguments = parsed
        elif isinstance(arguments, dict) and self._reads_text:
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**function, "arguments": arguments}}

    @functools.cached_property
    def _reads_text(self) -> bool:
        """Whether the template expects the arguments of calls as JSON text, as DeepSeek's does."""
        as_object = self._with_arguments(json.loads(PROBE))
        if as_object is not None and "probe" in as_object and "{'probe'" not in as_object:
            return False
        as_text = self._with_arguments(PROBE)
        return as_text is not None and PROBE in as_text

    def _with_arguments(self, arguments: Any) -> str | None:
        """Render a conversation with a call; return None if the template fails."""
        function = {"name": "f", "arguments": arguments}
        call = {"id": "abcdefghi", "type": "function", "function": function}
        messages = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        given = {"messages": messages, "tools": None, "add_generation_prompt": False}
        try:
            return self._rendered(self._defaults() | given, 0)
        except (LayoutError, ModelFormatError):
            return None


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
        functions = [call.get("function", {}) for call in message.get("tool_calls") or []]
        if not _are_dicts(functions):
            raise _malformed(f"the function of a tool call of message {i} is not a dict")


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
