"""Ollama's interface: /api/chat and /api/generate.  By default, responses are streams.

Source of the fields: github.com/ollama/ollama, docs/api.md.
"""

import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from typing import Any

from npurt.llm.decode.calls.format import CallPart, FunctionCall, add_part, parsed_arguments
from npurt.llm.decode.calls.reading import Said, Thought
from npurt.serve.front import options
from npurt.serve.front.conversation import Conversation
from npurt.serve.front.front import Front, SamplingParams
from npurt.serve.front.generation import ChoiceDelta, Texts
from npurt.serve.http import sse
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_chat import messages
from npurt.serve.tools.wanted import tools_of

REASONS = {"length": "length", "context": "length"}  # others: stop


async def chat(front: Front, request: HttpRequest) -> Answer:
    """Answer a chat request in Ollama's form."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    wanted = await _wanted(fields, request.salt)
    if not fields.items("messages"):
        return await _loaded(front, {"message": {"role": "assistant", "content": ""}})
    _refuse_images(fields.objects("messages"))
    tools = tools_of(fields)
    if tools.forced and wanted.constrained:
        raise wrong("tool_choice forces a call, and so no format can be", "leave one out", "format")
    given = messages(fields)
    stream = fields.flag("stream", True)
    talk = await Conversation.of(front, request, given, wanted, tools, _variables(fields),
                                 truncate=fields.flag("truncate", True))  # fmt: skip
    said = _Talk(front, talk.texts)
    talk.texts.progress = stream and fields.flag("return_progress")
    if not stream:
        return await said.whole(_chat_parts(talk, said, signs=False), _joined_messages)
    return _lines(_chat_parts(talk, said, signs=True), talk.texts)


async def generate(front: Front, request: HttpRequest) -> Answer:
    """Complete a raw prompt, or answer a prompt through the chat template."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    wanted = await _wanted(fields, request.salt)
    prompt, suffix = fields.text("prompt", "") or "", fields.text("suffix", "") or ""
    system, raw = fields.text("system", "") or "", fields.flag("raw")
    if fields.items("images"):
        raise wrong("npurt reads no pictures", "leave images out", "images")
    stream = fields.flag("stream", True)
    if not prompt:
        return await _loaded(front, {"response": ""})
    if raw or suffix:
        ids = await request.in_thread(
            lambda: front.model.around(prompt, suffix) if suffix else front.model.encode(prompt)
        )
        texts = front.begin([ids], wanted)
        said = _Talk(front, texts)
        parts = _raw_parts(texts, said, front.settings.ping if stream else None)
    else:
        turns = [{"role": "system", "content": system}] if system else []
        turns.append({"role": "user", "content": prompt})
        talk = await Conversation.of(front, request, turns, wanted, None, _variables(fields))
        texts, said = talk.texts, _Talk(front, talk.texts)
        parts = _generate_parts(talk, said, signs=stream)
    texts.progress = stream and fields.flag("return_progress")
    if not stream:
        return await said.whole(parts, _joined_responses)
    return _lines(parts, texts)


# --- Requests -----------------------------------------------------------------------------------


async def _wanted(fields: Fields, salt: str) -> SamplingParams:
    chosen = fields.inner("options")
    wanted = options.wanted(chosen, salt, "num_predict")
    wanted.choices = 1
    form = fields.values.get("format")
    asked: dict[str, Any] | None = None
    if form == "json":
        asked = {"type": "json_object"}
    elif isinstance(form, dict):
        asked = {"type": "json_schema", "json_schema": {"schema": form}}
    elif form not in (None, ""):
        raise fields.wrong("format", '"json", or a JSON schema')
    await options.constrain(Fields({"response_format": asked}), wanted)
    return wanted


def _variables(fields: Fields) -> dict[str, Any]:
    """Return the chat template's variables: enable_thinking, if the request has ``think``."""
    think = fields.values.get("think")
    if think is None:
        return {}
    if not isinstance(think, bool | str):
        raise fields.wrong("think", "true, false or a level")
    return {"enable_thinking": bool(think)}


def _refuse_images(found: list[Fields]) -> None:
    for message in found:
        if message.items("images"):
            raise message.wrong("images", "left out: npurt reads no pictures")


# --- Answers ------------------------------------------------------------------------------------

Parts = AsyncGenerator[dict[str, Any], None]


def stamp() -> str:
    """Return the current time in Ollama's format."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


async def _loaded(front: Front, empty: dict[str, Any]) -> Answer:
    """Load the model, and return the response to a request without a prompt."""
    await front.load()
    head = {"model": front.model.name, "created_at": stamp()}
    return head | empty | {"done": True, "done_reason": "load"}


class _Talk:
    """The shared fields and the timing of the objects of one answer."""

    def __init__(self, front: Front, texts: Texts) -> None:
        self._front = front
        self._texts = texts
        self._began = time.perf_counter_ns()

    def object(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return an object before the end of the answer."""
        head = {"model": self._front.model.name, "created_at": stamp()}
        return head | values | {"done": False}

    def sign(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return a keep-alive object, with the progress of the prompt if requested."""
        return self.object(values) | self._texts.progress_now()

    def end(self, values: dict[str, Any], finish: str) -> dict[str, Any]:
        """Return the last object; its durations are in ns, the total from the client's view."""
        now, texts = time.perf_counter_ns(), self._texts
        timing = texts.choices[0].timing
        return self.object(values) | {
            "done": True,
            "done_reason": REASONS.get(finish, "stop"),
            "total_duration": now - self._began,
            "load_duration": 0,
            "prompt_eval_count": texts.prompt_tokens,
            "prompt_eval_duration": int(1e9 * timing.prompt),
            "eval_count": texts.completion_tokens,
            "eval_duration": int(1e9 * timing.generation),
        }

    async def whole(
        self, parts: Parts, joined: Callable[[list[dict[str, Any]]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return one object with the fields of all *parts* joined."""
        found = [part async for part in parts]
        return found[-1] | joined(found)


def _lines(parts: Parts, texts: Texts) -> sse.Stream:
    async def lines() -> AsyncGenerator[bytes, None]:
        async for part in parts:
            yield sse.line(part)

    return sse.Stream(lines(), texts, kind=sse.LINES, packed=sse.line)


def _message(update: ChoiceDelta | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    match update.part if update else None:
        case Said(text):
            message["content"] = text
        case Thought(text):
            message["thinking"] = text
    return message


async def _chat_parts(talk: Conversation, said: _Talk, *, signs: bool) -> Parts:
    calls: list[FunctionCall] = []
    sent = 0  # number of calls sent
    async for update in talk.updates(signs=signs):
        if update is None:
            yield said.sign({"message": _message(None)})
            continue
        if isinstance(update.part, CallPart):
            add_part(calls, update.part)
        elif update.part is not None:
            yield said.object({"message": _message(update)})
        # Arguments are an object in this interface, so a call is sent when it is complete.
        whole = len(calls) if update.finish else talk.ended(update.choice)
        for call in calls[sent:whole]:
            if (arguments := parsed_arguments(call)) is not None:  # None: the call was cut off
                function = {"name": call.name, "arguments": arguments}
                yield said.object({"message": _message(None) | {
                    "tool_calls": [{"function": function}]
                }})  # fmt: skip
        sent = max(sent, whole)
        if update.finish:
            yield said.end({"message": _message(None)}, update.finish)


def _joined_messages(parts: list[dict[str, Any]]) -> dict[str, Any]:
    found = [part["message"] for part in parts]
    message = {"role": "assistant", "content": "".join(each["content"] for each in found)}
    thought = "".join(each.get("thinking", "") for each in found)
    calls = [call for each in found for call in each.get("tool_calls", ())]
    return {
        "message": message
        | ({"thinking": thought} if thought else {})
        | ({"tool_calls": calls} if calls else {})
    }


async def _generate_parts(talk: Conversation, said: _Talk, *, signs: bool) -> Parts:
    async for update in talk.updates(signs=signs):
        if update is None:
            yield said.sign({"response": ""})
            continue
        match update.part:
            case Said(text):
                yield said.object({"response": text})
            case Thought(text):
                yield said.object({"response": "", "thinking": text})
        if update.finish:
            yield said.end({"response": ""}, update.finish)


async def _raw_parts(texts: Texts, said: _Talk, ping: float | None) -> Parts:
    async for piece in texts.pieces(ping):
        if piece is None:
            yield said.sign({"response": ""})
            continue
        if piece.text:
            yield said.object({"response": piece.text})
        if piece.finish:
            yield said.end({"response": ""}, piece.finish)


def _joined_responses(parts: list[dict[str, Any]]) -> dict[str, Any]:
    thought = "".join(part.get("thinking", "") for part in parts)
    text = "".join(part["response"] for part in parts)
    return {"response": text} | ({"thinking": thought} if thought else {})
