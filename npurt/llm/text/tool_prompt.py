"""Describe tools in a conversation for chat templates that do not support tools.

The form is that of Hermes: functions as JSON in the system message, calls as JSON between the tags
``<tool_call>``, and results between the tags ``<tool_response>`` in a message of the user.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Messages = list[dict[str, Any]]

INTRODUCTION = """\
You can call functions. Each line between these tags describes a function, as JSON:
<tools>
{}
</tools>

To call a function, answer with a JSON object of its name and its arguments, between these tags:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>

If no function helps, answer as usual."""


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that describes *tools* to a model."""
    lines = [json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools]
    return INTRODUCTION.format("\n".join(lines))


def text_of(content: Any) -> str:
    """Return the text of a message's content: a string, or a list of parts as in OpenAI's API."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def told(messages: Sequence[Mapping[str, Any]], introduction: str, *, system: bool) -> Messages:
    """Return *messages* with *introduction*, and with calls and results as text.

    Args:
        messages: Messages whose contents are text.
        introduction: The description of the tools; "": none.
        system: Whether the introduction is in the system message instead of the first user message.
    """
    made: Messages = []
    for message in messages:
        role, content = message["role"], text_of(message.get("content"))
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        calls = [_call(call) for call in message.get("tool_calls") or ()]
        content = "\n".join(filter(None, [content, *calls]))
        if role == "user" and made and made[-1]["role"] == "user":
            made[-1]["content"] += f"\n{content}"  # some templates require that roles alternate
        else:
            others = {
                key: value
                for key, value in message.items()
                if key not in ("tool_calls", "tool_call_id", "name")
            }
            made.append({**others, "role": role, "content": content})
    first = "system" if system else "user"
    at = next((i for i, message in enumerate(made) if message["role"] == first), -1)
    if not introduction:
        return made
    if at < 0:
        return [{"role": first, "content": introduction}, *made]
    texts = [made[at]["content"], introduction]
    made[at]["content"] = "\n\n".join(filter(None, texts if system else reversed(texts)))
    return made


def _call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function.get("name", ""), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text or "{}"}}}\n</tool_call>'
