"""OpenAI's interface: /v1/responses, without stored responses.

Source of the fields and events: platform.openai.com, API reference, Responses.
"""

from collections.abc import AsyncGenerator
from typing import Any

from npurt.llm.decode.calls.reading import Part
from npurt.serve.front import options
from npurt.serve.front.conversation import Conversation, prompt_of
from npurt.serve.front.front import Front
from npurt.serve.http import sse
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_common import new_id, now
from npurt.serve.interfaces.openai_items import Item, ThoughtItem, new_item
from npurt.serve.tools.wanted import Tools, flat_tools, tools_of


async def respond(front: Front, request: HttpRequest) -> Answer:
    """Answer an input in the form of OpenAI's Responses."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    if fields.has("previous_response_id") or fields.has("conversation"):
        raise wrong(
            "this server keeps no earlier responses",
            "send all of the conversation as input, as with store: false",
            "previous_response_id", "unsupported",
        )  # fmt: skip
    wanted = options.wanted(fields, request.salt, "max_output_tokens")
    wanted.choices = 1
    form = fields.inner("text").inner("format")
    if form.text("type", "text") == "json_schema":
        asked: dict[str, Any] = {"type": "json_schema", "json_schema": form.values}
    else:
        asked = dict(form.values)
    others = {name: value for name, value in fields.values.items() if name != "response_format"}
    await options.constrain(Fields(others | {"response_format": asked or None}), wanted)
    tools = _tools(fields)
    if tools.forced and wanted.constrained:
        raise wrong("tool_choice forces a call, and so no other format can be", "leave one out",
                    "tool_choice")  # fmt: skip
    stream = fields.flag("stream")
    echoed = _echoed(fields)
    given = await request.in_thread(lambda: _messages(fields))
    talk = await Conversation.of(front, request, given, wanted, tools)
    talk.texts.progress = stream and fields.flag("return_progress")
    response = Response(front, talk, echoed)
    if stream:
        return sse.Stream(response.events(), talk.texts, packed=response.error)
    async for _ in response.events(signs=False):
        pass
    return response.whole()


async def count_input(front: Front, request: HttpRequest) -> Answer:
    """Count the prompt tokens of a request to /v1/responses."""
    fields = request.fields
    _, ids = await prompt_of(front, request, _messages(fields), _tools(fields), None)
    return {"object": "response.input_tokens", "input_tokens": len(ids)}


# --- Requests -----------------------------------------------------------------------------------


def _tools(fields: Fields) -> Tools:
    """Return the tools that are functions, without tools that OpenAI's server would run."""
    listed = flat_tools(fields, None, "function", "parameters")
    chosen = fields.values.get("tool_choice")
    several = fields.flag("parallel_tool_calls", True)
    return tools_of(
        Fields({"tools": listed, "tool_choice": chosen, "parallel_tool_calls": several})
    )


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """Convert the input to chat messages."""
    instructions = fields.text("instructions")
    made: list[dict[str, Any]] = []
    if instructions:
        made.append({"role": "system", "content": instructions})
    if isinstance(fields.values.get("input"), str):
        return [*made, {"role": "user", "content": fields.values["input"]}]
    for item in fields.objects("input"):
        match item.text("type", "message"):
            case "message":
                made.append(
                    {"role": item.required_text("role"), "content": _content(item, "content")}
                )
            case "function_call":
                function = {
                    "name": item.required_text("name"),
                    "arguments": item.text("arguments", "{}"),
                }
                call = {"id": item.text("call_id", ""), "type": "function", "function": function}
                if made and made[-1]["role"] == "assistant":  # one turn of the model
                    made[-1].setdefault("tool_calls", []).append(call)
                else:
                    made.append({"role": "assistant", "content": "", "tool_calls": [call]})
            case "function_call_output":
                made.append({
                    "role": "tool", "tool_call_id": item.text("call_id", ""),
                    "content": _content(item, "output"),
                })  # fmt: skip
            case "reasoning":
                pass  # chat templates leave out the thoughts of earlier answers
            case _:
                raise item.wrong("type", "message, function_call, function_call_output, reasoning")
    if not made:
        raise wrong("input has no message", "send at least one", "input")
    return made


def _content(item: Fields, name: str) -> str:
    if isinstance(item.values.get(name), str):
        return str(item.values[name])
    parts = item.objects(name)
    for part in parts:
        if part.text("type") not in ("input_text", "output_text", "text", "refusal"):
            raise part.wrong("type", "input_text; npurt reads neither pictures nor files")
    return "".join(part.text("text") or part.text("refusal") or "" for part in parts)


def _echoed(fields: Fields) -> dict[str, Any]:
    """Return the fields of the request that a response repeats."""
    return {
        "instructions": fields.text("instructions"),
        "max_output_tokens": fields.integer("max_output_tokens"),
        "metadata": fields.inner("metadata").values,
        "parallel_tool_calls": fields.flag("parallel_tool_calls", True),
        "previous_response_id": None,
        "store": False,
        "temperature": fields.number("temperature"),
        "text": fields.inner("text").values or {"format": {"type": "text"}},
        "tool_choice": fields.values.get("tool_choice") or "auto",
        "tools": fields.items("tools"),
        "top_p": fields.number("top_p"),
        "truncation": "disabled",
    }


# --- Responses ----------------------------------------------------------------------------------


class Response:
    """A response under construction: its object, its items, and its stream events."""

    def __init__(self, front: Front, talk: Conversation, echoed: dict[str, Any]) -> None:
        self._talk = talk
        self._model = front.model
        self._ping = front.settings.ping
        self._sequence = -1
        self._items: list[Item] = []
        self._made = {
            "id": new_id("resp").replace("-", "_"),
            "object": "response",
            "created_at": now(),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": front.model.name,
            "output": [],
            "usage": None,
            **echoed,
        }

    def whole(self) -> dict[str, Any]:
        """Return the response's object in its current state."""
        return self._made

    def error(self, body: Any) -> bytes:
        """Return the events of an error; *body* is the error's object in OpenAI's form."""
        found = body["error"]
        told = {name: found[name] for name in ("code", "message", "param")}
        self._made["status"] = "failed"
        self._made["error"] = {"code": found["code"] or found["type"], "message": found["message"]}
        self._made["output"] = [item.whole() for item in self._items]
        return self._event("error", **told) + self._event("response.failed", response=self._made)

    async def events(self, *, signs: bool = True) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream; after the last event, `whole` returns the full response."""
        yield self._event("response.created", response=self._made)
        yield self._event("response.in_progress", response=self._made)
        finish = "end"
        async for update in self._talk.updates(signs=signs):
            if update is None:
                told = self._talk.texts.progress_now()
                yield self._event("response.in_progress", response=self._made, **told)
                continue
            finish = update.finish or finish
            if update.part is not None:
                for data in self._taken(update.part):
                    yield data
        for data in self._closed():
            yield data
        self._finish(finish)
        yield self._event(f"response.{self._made['status']}", response=self._made)

    def _taken(self, part: Part) -> list[bytes]:
        """Return the events of *part*."""
        last = self._items[-1] if self._items else None
        found: list[bytes] = []
        if not (last and last.takes(part)):
            found += self._closed()
            self._items.append(new_item(part))
            found += self._of_item(self._items[-1].begin())
        return found + self._of_item(self._items[-1].add(part))

    def _closed(self) -> list[bytes]:
        if not self._items or self._items[-1].closed:
            return []
        self._items[-1].closed = True
        return self._of_item(self._items[-1].end())

    def _of_item(self, events: list[tuple[str, dict[str, Any]]]) -> list[bytes]:
        index = len(self._items) - 1
        return [self._event(name, output_index=index, **values) for name, values in events]

    def _event(self, name: str, /, **values: Any) -> bytes:
        self._sequence += 1
        return sse.event(name, {"type": name, "sequence_number": self._sequence, **values})

    def _thought(self) -> int:
        """Return the number of tokens of the thoughts, counted by tokenizing their text."""
        thoughts = [item.text for item in self._items if isinstance(item, ThoughtItem)]
        return sum(len(self._model.encode(text, add_bos=False)) for text in thoughts)

    def _finish(self, finish: str) -> None:
        cut = finish in ("length", "context")
        texts = self._talk.texts
        self._made["status"] = "incomplete" if cut else "completed"
        self._made["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        self._made["output"] = [item.whole() for item in self._items]
        self._made["usage"] = {
            "input_tokens": texts.prompt_tokens,
            "input_tokens_details": {"cached_tokens": texts.cached_tokens},
            "output_tokens": texts.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._thought()},
            "total_tokens": texts.prompt_tokens + texts.completion_tokens,
        }
