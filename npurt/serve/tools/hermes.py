r"""Calls as JSON between tags: Hermes, Qwen2.5, Qwen3.

Source: the chat templates of these models: ``<tool_call>\n{"name": ..., "arguments": {...}}\n
</tool_call>``.
"""

import re
from collections.abc import Sequence

from npurt.serve.tools import strict
from npurt.serve.tools.calls import Call, Format, Schemas, call_of, objects
from npurt.serve.tools.strict import Functions, Markers

# A string of JSON, as far as it has come.  A control character breaks it off.
STRING = r'"(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*+\\?(?:["\x00-\x1f]|\Z)'
BEFORE_END = re.compile(rf'(?:[^"<]++|{STRING}|<(?!/tool_call>))*+')


class Hermes(Format):
    """See `Format`."""

    start = "<tool_call>"
    end = "</tool_call>"
    bare = ""
    markup: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def find_end(self, text: str) -> int:
        """Return where the end begins: the first one that is not in a string."""
        found = BEFORE_END.match(text)
        assert found, "it matches the empty text"
        return found.end() if found.end() < len(text) else -1

    def rules(self, functions: Functions, markers: Markers) -> str:
        """Return rules of Lark."""
        return (
            "answer: call* TEXT\n"
            f"call: begin SPACE object SPACE {markers.one(self.end)}\n"
            f"{markers.up_to('begin', self.start)}{strict.objects(functions, 'arguments')}"
        )

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*."""
        return [call_of(value, "arguments", "parameters") for value in objects(body)]
