r"""Calls as JSON between tags: Hermes, Qwen2.5, Qwen3.

Source: the chat templates of these models: ``<tool_call>\n{"name": ..., "arguments": {...}}\n
</tool_call>``.
"""

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
from npurt.llm.decode.calls.growing import json_growth
from npurt.llm.decode.calls.strict import Functions, Markers

# A JSON string, which may be incomplete at the end of the text.  A control character ends it.
STRING = r'"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*+\\?(?:["\x00-\x1f]|\Z)'
BEFORE_END = re.compile(rf'(?:[^"<]++|{STRING}|<(?!/tool_call>))*+')


class Hermes(CallFormat):
    """The format of Hermes; see `CallFormat`."""

    start = "<tool_call>"
    end = "</tool_call>"
    bare = ""
    markup: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def find_end(self, text: str) -> int:
        """Return the index of the first end marker outside a JSON string; -1: none yet."""
        found = BEFORE_END.match(text)
        assert found, "the pattern matches the empty text"
        return found.end() if found.end() < len(text) else -1

    def growth(self, text: str, at: int) -> Growth | None:
        """Return the growth of the next call; see `CallFormat`."""
        return json_growth(text, at)

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return the Lark rules of an answer; see `CallFormat`."""
        return (
            "answer: call* TEXT\n"
            f"call: begin SPACE object SPACE {markers.one(self.end)}\n"
            f"{markers.up_to('begin', self.start)}{strict.objects(functions, 'arguments')}"
        )

    def parse(self, body: str, schemas: Schemas) -> Sequence[FunctionCall]:
        """Return the calls in *body*."""
        return [call_of(value, "arguments", "parameters") for value in objects(body)]
