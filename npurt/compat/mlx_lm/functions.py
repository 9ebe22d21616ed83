"""Convert Python functions to tools: derive JSON schemas from type hints and docstrings.

The rules are those of transformers' `get_json_schema`: the first lines of the docstring describe
the function, and the section ``Args:`` describes the arguments.
Source: Hugging Face, documentation of transformers, "Tool use": supported hints and sections.
"""

import inspect
import re
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from npurt.errors import SettingError

NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", dict: "object",
         list: "array", tuple: "array", type(None): "null"}  # fmt: skip
SECTION = re.compile(r"^(?:Args|Arguments|Returns|Raises|Examples?):\s*$", re.MULTILINE)
ARGUMENT = re.compile(r"^ {1,8}(\w+)[^:\n]*:\s*", re.MULTILINE)


def as_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the tool that describes *function*, in the form that chat templates expect.

    Raises:
        SettingError: *function* has no docstring, or an argument has no hint of a JSON type.
    """
    name = getattr(function, "__name__", repr(function))
    text = inspect.getdoc(function)
    if not text:
        raise SettingError(
            f"the function {name} has no docstring",
            remedy="add a docstring that describes the function and its Args:",
        )
    about, said = _read(text)
    try:
        hints, signature = get_type_hints(function), inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise _untyped(name, str(error)) from error
    properties = {
        argument: _typed(name, argument, hints.get(argument)) | said.get(argument, {})
        for argument in signature.parameters
    }
    required = [each.name for each in signature.parameters.values() if each.default is each.empty]
    parameters = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    described = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": described}


def _read(text: str) -> tuple[str, Mapping[str, dict[str, str]]]:
    """Return the description of the function, and the description of each argument."""
    about, *sections = SECTION.split(text)
    heads = SECTION.findall(text)
    said = {}
    for head, body in zip(heads, sections, strict=True):
        if head.startswith("Arg"):
            _, *parts = ARGUMENT.split(body)
            for argument, words in zip(parts[::2], parts[1::2], strict=True):
                said[argument] = {"description": " ".join(words.split())}
    return " ".join(about.split()), said


def _typed(name: str, argument: str, hint: Any) -> dict[str, Any]:
    """Return the schema of the type *hint*."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if origin is Literal:
        return {"type": NAMES.get(type(inner[0]), "string"), "enum": list(inner)}
    if origin in (Union, types.UnionType):
        kinds = [_typed(name, argument, each) for each in inner if each is not type(None)]
        several = kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
        return several | ({"nullable": True} if type(None) in inner else {})
    kind = origin or hint
    if not isinstance(kind, type) or kind not in NAMES:
        raise _untyped(name, f"its argument {argument} is {hint}")
    items = {"items": _typed(name, argument, inner[0])} if kind is list and inner else {}
    return {"type": NAMES[kind], **items}


def _untyped(name: str, what: str) -> SettingError:
    return SettingError(
        f"the function {name} cannot be a tool: {what}",
        remedy="annotate its arguments with int, float, str, bool, list[...] or dict, or pass a "
        "JSON schema",
    )
