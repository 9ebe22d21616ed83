"""Mistral's calls: ``[TOOL_CALLS]``, then a list, or for each call name, ``[ARGS]``, object.

Source: the chat templates of Mistral's models.
"""

import json
import re
from collections.abc import Sequence

from npurt.llm.decode.calls import strict
from npurt.llm.decode.calls.format import (
    CallFormat,
    FunctionCall,
    Growth,
    Schemas,
    call_of,
    objects,
)
from npurt.llm.decode.calls.growing import JsonGrowth, json_growth
from npurt.llm.decode.calls.strict import Functions, Markers

LISTED = re.compile(r"\s*(?:\[\s*)?\{")
NAMED = re.compile(
    r"(?:\s*\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*"
)


class Mistral(CallFormat):
    """Mistral's format of calls; see `CallFormat`."""

    start = "[TOOL_CALLS]"
    end = ""
    bare = ""
    markup: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

    def growth(self, text: str, at: int) -> Growth | None:
        """Return the growth of the next call; see `CallFormat`."""
        if listed := json_growth(text, at):
            return listed
        found = NAMED.match(text, at)
        ready = found and text.startswith("{", found.end())
        return JsonGrowth(found[1], found.end()) if found and ready else None

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return the Lark rules of an answer; see `CallFormat`."""
        calls = [
            f"{strict.quoted(name)} SPACE ({markers.one('[ARGS]')} SPACE)? arguments_{i}"
            for i, name in enumerate(functions)
        ]
        return (
            "answer: begin SPACE (list | call more*) | TEXT\n"
            f"more: SPACE {markers.one(self.start)} SPACE call\n"
            'list: "[" SPACE object (SPACE "," SPACE object)* SPACE "]"\n'
            f"{markers.up_to('begin', self.start)}{strict.either('call', calls)}"
            f"{strict.objects(functions, 'arguments')}"
        )

    def parse(self, body: str, schemas: Schemas) -> Sequence[FunctionCall]:
        """Return the calls in *body*."""
        if LISTED.match(body):
            calls = []
            for value in objects(body):
                listed = value if isinstance(value, list) else [value]
                calls += [call_of(each, "arguments", "parameters") for each in listed]
            return calls
        calls, at, decoder = [], 0, json.JSONDecoder()
        while body[at:].strip():
            match = NAMED.match(body, at)
            if match is None:
                raise ValueError("no name of a function")
            try:
                value, at = decoder.raw_decode(body, match.end())
            except RecursionError as error:
                raise ValueError("nested too deep") from error
            calls.append(call_of({"name": match[1], "arguments": value}, "arguments"))
        return calls
