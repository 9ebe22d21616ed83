r"""Calls as JSON between tags: Hermes, Qwen2.5, Qwen3.

Source: the chat templates of these models: ``<tool_call>\n{"name": ..., "arguments": {...}}\n
</tool_call>``.
"""

from collections.abc import Sequence

from npurt.serve.tools.calls import Call, Schemas, call_of, objects


class Hermes:
    """See `Format`."""

    start = "<tool_call>"
    end = "</tool_call>"
    bare = ""
    markup: tuple[str, ...] = ("<tool_call>", "</tool_call>")

    def parse(self, body: str, schemas: Schemas) -> Sequence[Call]:
        """Return the calls in *body*."""
        return [call_of(value, "arguments", "parameters") for value in objects(body)]
