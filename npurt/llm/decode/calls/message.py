"""Parse a whole answer to a chat message in OpenAI's form."""

from collections.abc import Mapping, Sequence
from typing import Any

from npurt.llm.decode.calls.choose import format_of
from npurt.llm.decode.calls.format import CallPart, FunctionCall, Schemas, add_part, new_call_id
from npurt.llm.decode.calls.reading import BEGIN, END, Reader, Said, Thought


def message_of(
    text: str, tools: Sequence[Mapping[str, Any]], template: str, *, cut: bool
) -> dict[str, Any]:
    """Return the message of the answer *text*.

    Args:
        text: The whole answer.
        tools: The functions that the model may call, as JSON schemas.
        template: The source of the chat template.
        cut: Whether a limit of tokens cut the answer off.
    """
    before_end = text.partition(END)[0]
    reader = Reader(
        format_of(template) if tools else None, schemas_of(tools),
        thinks=BEGIN in template or END in template,
        within=END in text and BEGIN not in before_end,
    )  # fmt: skip
    content, thought, calls = "", "", list[FunctionCall]()
    for part in [*reader.push(text), *reader.finish(cut=cut)]:
        match part:
            case Said(said):
                content += said
            case Thought(thinking):
                thought += thinking
            case CallPart():
                add_part(calls, part)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["content"] = content or None
        message["tool_calls"] = [openai_call(call) for call in calls]
    return message


def openai_call(call: FunctionCall | CallPart) -> dict[str, Any]:
    """Return *call* in OpenAI's form, with a new id."""
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": new_call_id(), "type": "function", "function": function}


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """Return the schemas of the parameters of *tools* by the name of the function."""
    functions = [tool.get("function", tool) for tool in tools]
    return {
        function["name"]: function.get("parameters") or {}
        for function in functions
        if isinstance(function, Mapping) and isinstance(function.get("name"), str)
    }
