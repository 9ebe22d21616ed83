"""Anthropic's interface: /v1/messages and /v1/messages/count_tokens.

Source of the fields and events: docs.anthropic.com, API reference, Messages.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from npurt.llm.decode.calls.format import CallPart, FunctionCall, add_part, parsed_arguments
from npurt.llm.decode.calls.reading import Part, Said, Thought
from npurt.serve.front import options
from npurt.serve.front.conversation import Conversation, prompt_of
from npurt.serve.front.front import Front
from npurt.serve.http import sse
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_common import new_id
from npurt.serve.tools.wanted import Tools, flat_tools, tools_of

REASONS = {
    "end": "end_turn", "stop": "end_turn", "length": "max_tokens", "context": "max_tokens",
    "calls": "tool_use",
}  # fmt: skip
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
# For each kind of part: its block's type and initial fields, and the delta's type and text field.
BLOCKS: dict[type[Part], tuple[str, dict[str, str], str, str]] = {
    Said: ("text", {"text": ""}, "text_delta", "text"),
    Thought: ("thinking", {"thinking": "", "signature": ""}, "thinking_delta", "thinking"),
}


async def answer(front: Front, request: HttpRequest) -> Answer:
    """Answer a chat request in Anthropic's form."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    wanted = options.wanted(fields, request.salt, "max_tokens")
    wanted.stops, wanted.choices = options.stops(fields, "stop_sequences")[0], 1
    await options.constrain(fields, wanted)
    stream = fields.flag("stream")
    given, before = await request.in_thread(lambda: _messages(fields))
    tools, variables = _tools(fields), _variables(fields)
    talk = await Conversation.of(front, request, given, wanted, tools, variables, before=before)
    talk.texts.progress = stream and fields.flag("return_progress")
    if stream:
        return sse.Stream(_parts(front, talk), talk.texts, packed=_error)
    return await _whole(front, talk)


async def count_tokens(front: Front, request: HttpRequest) -> Answer:
    """Count the prompt tokens of a chat request."""
    fields = request.fields
    given, before = await request.in_thread(lambda: _messages(fields))
    tools, variables = _tools(fields), _variables(fields)
    _, ids = await prompt_of(front, request, given, tools, variables, before=before)
    return {"input_tokens": len(ids)}


def _error(body: Any) -> bytes:
    return sse.event("error", body)


def _variables(fields: Fields) -> dict[str, Any]:
    """Return the chat template's variables; thinking is enabled only if the request asks for it."""
    return {"enable_thinking": fields.inner("thinking").text("type", "disabled") != "disabled"}


# --- Requests -----------------------------------------------------------------------------------


def _tools(fields: Fields) -> Tools:
    """Return the tools, without those that Anthropic's server would run itself."""
    listed = flat_tools(fields, "custom", "custom", "input_schema")
    choice = fields.inner("tool_choice")
    kind = choice.text("type", "auto") or "auto"
    chosen: Any = CHOICES.get(kind)
    if kind == "tool":
        chosen = {"type": "function", "function": {"name": choice.required_text("name")}}
    if chosen is None:
        raise choice.wrong("type", "auto, any, tool or none")
    several = not choice.flag("disable_parallel_tool_use")
    return tools_of(
        Fields({"tools": listed, "tool_choice": chosen, "parallel_tool_calls": several})
    )


def _messages(fields: Fields) -> tuple[list[dict[str, Any]], str]:
    """Return the messages in OpenAI's form, and the given beginning of the answer.

    The beginning is the content of a final message of the assistant, "" if there is none.
    """
    system = _text(fields, "system")
    made = [{"role": "system", "content": system}] if system else []
    for message in fields.objects("messages"):
        role = message.required_text("role")
        if role not in ("user", "assistant", "system"):
            raise message.wrong("role", "user or assistant")
        made += _turn(message, role)
    before = ""
    if made[-1]["role"] == "assistant" and not made[-1].get("tool_calls") and len(made) > 1:
        before = str(made.pop()["content"])
    return made, before


def _text(fields: Fields, name: str) -> str:
    """Return the string in the field *name*, or the joined texts of its list of blocks."""
    if isinstance(fields.values.get(name), str):
        return str(fields.values[name])
    blocks = fields.objects(name)
    for block in blocks:
        if block.text("type") != "text":
            raise block.wrong("type", "text; npurt reads neither pictures nor documents")
    return "".join(block.required_text("text") for block in blocks)


def _turn(message: Fields, role: str) -> list[dict[str, Any]]:
    """Convert a message to OpenAI's form; each tool result becomes a separate message."""
    if isinstance(message.values.get("content"), str):
        return [{"role": role, "content": message.values["content"]}]
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    texts: dict[str, list[str]] = {"text": [], "thinking": []}
    for block in message.objects("content"):
        match block.text("type"):
            case "text" | "thinking" as kind:
                texts[kind].append(block.required_text(kind))
            case "redacted_thinking":
                pass
            case "tool_use":
                function = {"name": block.required_text("name")}
                arguments = {"arguments": block.inner("input").values}
                calls.append({
                    "id": block.text("id", ""), "type": "function", "function": function | arguments
                })  # fmt: skip
            case "tool_result":
                name = block.text("tool_use_id", "")
                content = _text(block, "content")
                results.append({"role": "tool", "tool_call_id": name, "content": content})
            case _:
                raise block.wrong("type", "text, thinking, tool_use or tool_result")
    text, thinking = "".join(texts["text"]), "".join(texts["thinking"])
    turn: dict[str, Any] = {"role": role, "content": text}
    if thinking:
        turn["reasoning_content"] = thinking
    if calls:
        turn["tool_calls"] = calls
    empty = results and not (text or calls)
    return results if empty else [*results, turn]


# --- Answers ------------------------------------------------------------------------------------


def _head(front: Front) -> dict[str, Any]:
    return {
        "id": new_id("msg").replace("-", "_"),
        "type": "message",
        "role": "assistant",
        "model": front.model.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(talk: Conversation) -> dict[str, int]:
    texts = talk.texts
    return {
        "input_tokens": texts.prompt_tokens - texts.cached_tokens,
        "cache_read_input_tokens": texts.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": texts.completion_tokens,
    }


def _end(talk: Conversation, finish: str) -> dict[str, str | None]:
    """Return the fields that tell why the answer ended."""
    stopped = talk.texts.choices[0].stopped
    if stopped is not None and finish != "calls":
        return {"stop_reason": "stop_sequence", "stop_sequence": stopped}
    return {"stop_reason": REASONS[finish], "stop_sequence": None}


async def _whole(front: Front, talk: Conversation) -> Answer:
    content: list[dict[str, Any]] = []
    calls: list[FunctionCall] = []
    finish = "end"
    async for update in talk.updates(signs=False):
        assert update is not None
        finish = update.finish or finish
        if isinstance(update.part, CallPart):
            if update.part.number == len(calls):
                content.append(_tool_use(update.part, {}))
            add_part(calls, update.part)
            content[-1]["input"] = parsed_arguments(calls[-1]) or {}
        elif update.part is not None:
            kind, empty, _, field = BLOCKS[type(update.part)]
            if not content or content[-1]["type"] != kind:
                content.append({"type": kind, **empty})
            content[-1][field] += update.part.text
    return _head(front) | {"content": content, "usage": _usage(talk)} | _end(talk, finish)


def _tool_use(call: CallPart, arguments: Mapping[str, Any]) -> dict[str, Any]:
    name = new_id("toolu").replace("-", "_")
    return {"type": "tool_use", "id": name, "name": call.name, "input": arguments}


class _Blocks:
    """Writes the content blocks of a stream; one block is open at a time."""

    def __init__(self) -> None:
        self._index = -1
        self._open: type[Part] | None = None
        self._call = -1  # number of the open call

    def take(self, part: Part) -> bytes:
        """Return the events of *part*, including the end of the block before it."""
        if isinstance(part, CallPart):
            data = b""
            if part.number != self._call:
                self._call = part.number
                data = self.end() + self._begin(CallPart, _tool_use(part, {}))
            return data + self._delta({"type": "input_json_delta", "partial_json": part.arguments})
        kind, empty, delta, field = BLOCKS[type(part)]
        data = b""
        if self._open is not type(part):
            data = self.end() + self._begin(type(part), {"type": kind, **empty})
        return data + self._delta({"type": delta, field: part.text})

    def end(self) -> bytes:
        """Close the open block and return its final events; b"" if no block is open."""
        if self._open is None:
            return b""
        data = b""
        if self._open is Thought:  # clients send the signature back with the thought
            data = self._delta({"type": "signature_delta", "signature": "npurt"})
        self._open = None
        return data + self._event("stop")

    def _begin(self, kind: type[Part], block: dict[str, Any]) -> bytes:
        self._open = kind
        self._index += 1
        return self._event("start", content_block=block)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return self._event("delta", delta=delta)

    def _event(self, name: str, **fields: Any) -> bytes:
        kind = f"content_block_{name}"
        return sse.event(kind, {"type": kind, "index": self._index, **fields})


async def _parts(front: Front, talk: Conversation) -> AsyncGenerator[bytes, None]:
    message = _head(front) | {"usage": _usage(talk)}
    yield sse.event("message_start", {"type": "message_start", "message": message})
    blocks, finish = _Blocks(), "end"
    async for update in talk.updates():
        if update is None:
            yield sse.event("ping", {"type": "ping", **talk.texts.progress_now()})
            continue
        finish = update.finish or finish
        if update.part is not None:
            yield blocks.take(update.part)
    yield blocks.end() + sse.event("message_delta", {
        "type": "message_delta", "delta": _end(talk, finish), "usage": _usage(talk)
    })  # fmt: skip
    yield sse.event("message_stop", {"type": "message_stop"})
