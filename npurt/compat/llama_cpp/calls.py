"""Function calls in a chat: constrain the model's answer, and parse calls from it."""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npurt.base import late
from npurt.compat.llama_cpp.arguments import missing
from npurt.errors import SettingError, brief
from npurt.llm.decode.calls.choose import format_of
from npurt.llm.decode.calls.format import CallPart
from npurt.llm.decode.calls.hermes import Hermes
from npurt.llm.decode.calls.reading import Reader, Said, Thought
from npurt.llm.decode.grammar.lark import Functions, either, one_call, parameters, quoted, value
from npurt.runtime.open.arguments import listed

# The chat format for function calls, with a template by npurt's authors.  An answer is either a
# text after "message:", or a list of calls, each of which begins with "functions.NAME:".
# Source: llama_cpp_python-0.3.36.tar.gz, llama_cpp/llama_chat_format.py, for the names and markers.
FORMAT = "chatml-function-calling"
MESSAGE = "message:\n"
HEAD = re.compile(r"\n?functions\.(.*?):\n")  # the beginning of a call
TEMPLATE = """\
{%- macro manual() -%}
You can call these functions:
{% for tool in tools %}
functions.{{ tool.function.name }}:
{% if tool.function.description %}{{ tool.function.description }}
{% endif %}{{ tool.function.parameters | tojson }}
{% endfor %}
Answer with a message, which begins with 'message:':

message:
<text>

Or answer with one or more calls, each of which begins with 'functions.<name>:':

functions.<name>:
{"argument": "value"}
{%- endmacro -%}
{%- if tools and messages[0].role != 'system' -%}
<|im_start|>system
{{ manual() }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.tool_calls -%}
{%- for call in message.tool_calls -%}
{%- set given = call.function.arguments -%}
{{ '\n' if not loop.first }}functions.{{ call.function.name }}:
{{ given if given is string else given | tojson }}
{%- endfor -%}
{%- else -%}
{%- if tools and message.role == 'assistant' -%}{{ 'message:\\n' }}{%- endif -%}
{{ message.content }}
{%- endif -%}
{%- if tools and loop.first and message.role == 'system' -%}
{{ '\\n\\n' + manual() }}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{{ begin }}
{%- endif -%}
"""


Part = str | CallPart  # a piece of the content, or of a call
# Reads the pieces of an answer.  Its second argument is called after the last piece, and returns
# whether a limit of tokens cut the answer off.
Read = Callable[[Iterable[str], Callable[[], bool]], Iterator[Part]]


@dataclass(frozen=True, slots=True)
class Calls:
    """The settings of function calls in a chat.

    Attributes:
        tools: The functions passed to the template.
        options: Sampling options that constrain the completion to calls.
        variables: Variables passed to the template.
        read: A function that returns the parts of an answer from its pieces of text.
        possible: Whether the answer may have calls.
        special: Whether control tokens mark the calls.
    """

    tools: Sequence[Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    read: Read = lambda pieces, _: iter(pieces)
    possible: bool = True
    special: bool = False


def calls_of(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: Any,
    functions: Sequence[Mapping[str, Any]] | None,
    function_call: Any,
    *,
    marked: bool,
    template: str = "",
) -> Calls:
    """Return the settings of function calls for the arguments of a chat.

    Args:
        tools: The functions.
        tool_choice: None, ``"none"``, ``"auto"``, ``"required"``, or a function.
        functions: The older form of *tools*, without the object around each function.
        function_call: The older form of *tool_choice*.
        marked: Whether the chat format is `FORMAT`; a *tool_choice* of None then means ``"none"``.
        template: The source of the chat template, which tells the format of calls.

    Raises:
        SettingError: *tool_choice* names a function that is not in *tools*.
        UnsupportedOp: *tool_choice* has another form.
    """
    if functions is not None:
        given = listed("functions", functions, "a list of functions as JSON schemas")
        tools = [{"type": "function", "function": each} for each in given]
    if function_call is not None:
        named = isinstance(function_call, Mapping)
        tool_choice = {"function": function_call} if named else function_call
    if tool_choice is None:
        tool_choice = "none" if marked else "auto"
    if isinstance(tool_choice, str) and tool_choice == "none":
        return Calls(possible=False)
    schemas = _schemas(tools)
    if isinstance(tool_choice, str) and tool_choice == "auto":
        if marked and schemas:
            return Calls(tools, {"grammar": _written(schemas, message=True)}, read=_read_marked)
        if schemas:
            reader = functools.partial(Reader, format_of(template), schemas)
            return Calls(tools, read=functools.partial(_read_free, reader), possible=False)
        return Calls(tools, possible=False)
    demanded = _demanded(tool_choice, schemas)
    if len(demanded) == 1:
        return _call_of(tools, *demanded.items(), marked=marked)
    if marked:
        return Calls(tools, {"grammar": _written(demanded, message=False)}, read=_read_marked)
    reader = functools.partial(Reader, Hermes(), demanded, forced=list(demanded))
    options = {"response_format": one_call(demanded)}
    return Calls(tools, options, read=functools.partial(_read_free, reader))


def _schemas(tools: Any) -> Functions:
    given = [
        each.get("function") if isinstance(each, Mapping) else None
        for each in listed(
            "tools", () if tools is None else tools, "a list of functions as JSON schemas"
        )
    ]
    return {
        function["name"]: parameters(function.get("parameters") or {})
        for function in given
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }


def _demanded(tool_choice: Any, schemas: Functions) -> Functions:
    """Return the functions; the model must call one of these."""
    if isinstance(tool_choice, str) and tool_choice == "required" and schemas:
        return schemas
    chosen = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    if not isinstance(chosen, Mapping):
        raise missing(f"tool_choice={brief(tool_choice)}")
    name = chosen.get("name")
    if not isinstance(name, str) or name not in schemas:
        raise SettingError(
            f"tool_choice names the function {brief(name)}, which is not among tools",
            remedy=f"name one of {json.dumps(list(schemas))}",
        )
    return {name: schemas[name]}


def _call_of(tools: Any, function: tuple[str, Any], *, marked: bool) -> Calls:
    """Return settings that constrain the completion to the arguments of *function*."""
    name, schema = function
    begin = {"begin": _begin_of(name)} if marked else {}
    options = {"response_format": {"type": "json_object", "schema": schema}}
    return Calls(tools, options, begin, functools.partial(_read_arguments, name))


def _read_arguments(name: str, pieces: Iterable[str], _: object = None) -> Iterator[Part]:
    """Yield a call of *name* with the arguments *pieces*, even if *pieces* is empty."""
    yield CallPart(0, name, "")
    for piece in pieces:
        yield CallPart(0, name, piece)


def _begin_of(name: str) -> str:
    return f"functions.{name}:\n"


def _written(functions: Functions, *, message: bool) -> Any:
    """Return the grammar of an answer in `FORMAT`: calls; *message* also allows a message."""
    with late.imports():
        from npurt.llm.decode.grammar.grammar import Grammar

    calls = [f"{quoted(_begin_of(name))} {value(schema)}" for name, schema in functions.items()]
    text = f" | {quoted(MESSAGE)} /(.|\\n)*/" if message else ""
    return Grammar.from_lark(f'start: call ("\\n" call)*{text}\n{either("call", calls)}')


def _read_marked(pieces: Iterable[str], _: object = None) -> Iterator[Part]:
    """Yield the parts of an answer in `FORMAT`: pieces of a message, or complete calls."""
    pieces, index, text = iter(pieces), 0, ""
    for piece in pieces:
        text += piece
        if text.startswith(MESSAGE):
            yield text.removeprefix(MESSAGE)
            yield from pieces
            return
        while (head := HEAD.match(text)) and (end := _end_of_object(text, head.end())):
            yield CallPart(index, head[1], text[head.end() : end])
            index, text = index + 1, text[end:]
    if head := HEAD.match(text):  # a truncated call
        yield CallPart(index, head[1], text[head.end() :])
    elif not index:
        yield text


def _end_of_object(text: str, start: int) -> int:
    """Return the end of the JSON object that begins at *start*, or 0 if it is incomplete."""
    try:
        return json.JSONDecoder().raw_decode(text, start)[1]
    except (RecursionError, ValueError):
        return 0


def _read_free(
    new_reader: Callable[[], Reader], pieces: Iterable[str], cut: Callable[[], bool]
) -> Iterator[Part]:
    """Yield the text and the calls that a new reader finds."""
    reader = new_reader()
    for piece in pieces:
        yield from map(_part, reader.push(piece))
    yield from map(_part, reader.finish(cut=cut()))


def _part(part: Said | Thought | CallPart) -> Part:
    return part if isinstance(part, CallPart) else part.text
