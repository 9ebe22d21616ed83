"""A call of a function that a chat demands: *tool_choice* names it, its schema is the grammar."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npurt.compat.llama_cpp.arguments import missing
from npurt.compat.llama_cpp.results import Result
from npurt.errors import SettingError, brief
from npurt.runtime.open.arguments import listed


@dataclass(frozen=True, slots=True)
class Demanded:
    """The function that is called, and the JSON schema of its arguments."""

    name: str
    schema: Mapping[str, Any]

    @property
    def response_format(self) -> Result:
        """What makes the text the arguments of the call."""
        return {"type": "json_object", "schema": self.schema}

    def part(self, completion: str, text: str) -> Result:
        """Return what a message of *completion*, an id, has in place of content."""
        called = {"name": self.name, "arguments": text}
        call = {"id": f"call__0_{self.name}_{completion}", "type": "function", "function": called}
        return {"content": None, "function_call": called, "tool_calls": [call]}

    def delta(self, completion: str, piece: str) -> Result:
        """Return the same of a chunk, whose arguments are the *piece* that it adds."""
        part = self.part(completion, piece)
        return part | {"tool_calls": [{"index": 0, **part["tool_calls"][0]}]}


def demanded_call(tools: Sequence[Mapping[str, Any]] | None, tool_choice: Any) -> Demanded | None:
    """Return the function that *tool_choice* demands, one of *tools*; None: the model is free.

    ``"required"`` demands the only one of *tools*.

    Raises:
        SettingError: It is none of them.
        UnsupportedOp: *tool_choice* is something else.
    """
    if tool_choice is None or (isinstance(tool_choice, str) and tool_choice in ("auto", "none")):
        return None
    functions = [
        each.get("function") if isinstance(each, Mapping) else None
        for each in listed("tools", tools or (), "a list of functions as JSON schemas")
    ]
    schemas = {
        function["name"]: function.get("parameters") or {"type": "object"}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
    if isinstance(tool_choice, str) and tool_choice == "required" and len(schemas) == 1:
        [(name, schema)] = schemas.items()
        return Demanded(name, schema)
    chosen = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    if not isinstance(chosen, Mapping):
        raise missing(f"tool_choice={brief(tool_choice)}")
    name = chosen.get("name")
    if not isinstance(name, str) or name not in schemas:
        raise SettingError(
            f"tool_choice names the function {brief(name)}, which is not among tools",
            remedy=f"name one of {json.dumps(list(schemas))}",
        )
    return Demanded(name, schemas[name])
