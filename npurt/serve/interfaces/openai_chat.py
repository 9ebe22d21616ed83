"""OpenAI's interface: /v1/chat/completions."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from npurt.llm.decode.calls.format import CallPart, FunctionCall, add_part
from npurt.llm.decode.calls.message import openai_call
from npurt.llm.decode.calls.reading import Said, Thought
from npurt.llm.text.chat import joined_parts
from npurt.serve.front import options
from npurt.serve.front.conversation import Conversation, prompt_of
from npurt.serve.front.front import Front
from npurt.serve.front.generation import Likely
from npurt.serve.http import sse
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_common import (
    FINISH,
    chat_logprobs,
    head,
    timings_at_end,
    usage,
    usage_chunk,
)
from npurt.serve.tools.wanted import tools_of


async def chat(front: Front, request: HttpRequest) -> Answer:
    """Answer a chat request in OpenAI's form."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    wanted = options.wanted(
        fields, request.salt, "max_completion_tokens", "max_tokens", "n_predict"
    )
    await options.constrain(fields, wanted)
    if fields.flag("logprobs"):
        wanted.top_logprobs = fields.integer("top_logprobs", 0)
    elif fields.integer("top_logprobs"):
        raise wrong("top_logprobs is set without logprobs", "set logprobs to true as well",
                    "top_logprobs")  # fmt: skip
    tools = tools_of(fields)
    if tools.forced and wanted.constrained:
        raise wrong("tool_choice forces a call, and so no other format can be", "leave one out",
                    "tool_choice")  # fmt: skip
    chosen = stream_options(fields)
    apart = fields.text("reasoning_format", "auto") != "none"
    variables = template_variables(fields)
    given, before = continued(fields, messages(fields))
    talk = await Conversation.of(
        front, request, given, wanted, tools, variables, apart=apart, before=before,
        prompted=fields.flag("add_generation_prompt", True),
    )  # fmt: skip
    talk.texts.progress = chosen is not None and fields.flag("return_progress")
    logged = wanted.top_logprobs is not None
    if chosen is None:
        return await _whole(front, talk, logged)
    return sse.Stream(_parts(front, talk, chosen), talk.texts)


async def count_input(front: Front, request: HttpRequest) -> Answer:
    """Count the prompt tokens of a request to /v1/chat/completions, as llama.cpp does."""
    fields = request.fields
    given, before = continued(fields, messages(fields))
    variables, tools = template_variables(fields), tools_of(fields)
    prompted = fields.flag("add_generation_prompt", True)
    _, ids = await prompt_of(
        front, request, given, tools, variables, before=before, prompted=prompted
    )
    return {"object": "response.input_tokens", "input_tokens": len(ids)}


def messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the messages of a chat."""
    return fields.items("messages")


def continued(fields: Fields, given: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the messages before a final message that is continued, and the text of this message.

    The text is "" unless ``continue_final_message`` is true.

    Raises:
        HttpError: The final message is not an answer, or ``add_generation_prompt`` is true as well.
    """
    if not fields.flag("continue_final_message"):
        return given, ""
    if fields.flag("add_generation_prompt"):
        raise wrong("continue_final_message and add_generation_prompt are true",
                    "leave one of them out", "add_generation_prompt")  # fmt: skip
    *earlier, last = joined_parts(given)
    text = last.get("content")
    if last.get("role") != "assistant" or not isinstance(text, str) or not earlier:
        raise wrong("the final message is no answer with text",
                    "end the messages with the beginning of an answer of the assistant",
                    "continue_final_message")  # fmt: skip
    return earlier, text


def template_variables(fields: Fields) -> dict[str, Any]:
    """Return the chat template's variables that the request sets.

    Raises:
        HttpError: The request sets a variable that has a field of its own.
    """
    given = dict(fields.inner("chat_template_kwargs").values)
    reserved = {"messages", "tools", "add_generation_prompt"} & given.keys()
    if reserved:
        raise wrong(f"chat_template_kwargs sets {min(reserved)}", "set it beside messages",
                    "chat_template_kwargs")  # fmt: skip
    if fields.has("enable_thinking"):
        given["enable_thinking"] = fields.flag("enable_thinking")
    return given


def stream_options(fields: Fields) -> Fields | None:
    """Return ``stream_options`` if the request asks for a stream, else None."""
    chosen = fields.inner("stream_options")
    chosen.flag("include_usage")
    return chosen if fields.flag("stream") else None


async def _whole(front: Front, talk: Conversation, logged: bool) -> Answer:
    count = len(talk.texts.choices)
    said, thought, reasons = [""] * count, [""] * count, ["end"] * count
    calls: list[list[FunctionCall]] = [[] for _ in range(count)]
    likely: list[list[Likely]] = [[] for _ in range(count)]
    async for update in talk.updates(signs=False):
        assert update is not None
        match update.part:
            case Said(text):
                said[update.choice] += text
            case Thought(text):
                thought[update.choice] += text
            case CallPart() as part:
                add_part(calls[update.choice], part)
        likely[update.choice] += update.likely
        reasons[update.choice] = update.finish or "end"
    choices = [
        {
            "index": i,
            "message": _message(said[i], thought[i], calls[i]),
            "logprobs": chat_logprobs(front.model, likely[i]) if logged else None,
            "finish_reason": FINISH[reasons[i]],
        }
        for i in range(count)
    ]
    made = head(front, "chatcmpl", "chat.completion")
    figures = {"usage": usage(talk.texts), "timings": talk.texts.timings()}
    return made | {"choices": choices} | figures


def _message(said: str, thought: str, calls: list[FunctionCall]) -> dict[str, Any]:
    content = None if calls and not said else said
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if thought:
        message["reasoning_content"] = thought
    return message | ({"tool_calls": list(map(openai_call, calls))} if calls else {})


async def _parts(front: Front, talk: Conversation, chosen: Fields) -> AsyncGenerator[bytes, None]:
    made = head(front, "chatcmpl", "chat.completion.chunk")
    with_usage = chosen.flag("include_usage")
    called = [0] * len(talk.texts.choices)

    def chunk(
        number: int,
        delta: dict[str, Any],
        likely: Sequence[Likely] = (),
        finish: str | None = None,
        **others: Any,
    ) -> bytes:
        choice = {
            "index": number,
            "delta": delta,
            "logprobs": chat_logprobs(front.model, likely) if likely else None,
            "finish_reason": FINISH[finish] if finish else None,
        }
        unset = {"usage": None} if with_usage else {}
        return sse.data(made | {"choices": [choice]} | unset | others)

    left = len(talk.texts.choices)
    for choice in talk.texts.choices:
        yield chunk(choice.number, {"role": "assistant", "content": ""})
    async for update in talk.updates():
        if update is None:
            # An empty chunk: SSE comments do not reset the timeouts of clients.
            yield chunk(talk.texts.first_open, {}, **talk.texts.progress_now())
            continue
        match update.part:
            case Said(text):
                yield chunk(update.choice, {"content": text}, update.likely)
            case Thought(text):
                yield chunk(update.choice, {"reasoning_content": text}, update.likely)
            case CallPart() as part:
                if part.number == called[update.choice]:
                    called[update.choice] += 1
                    call = openai_call(part)
                else:  # only the first delta of a call has its id, type and name
                    call = {"function": {"arguments": part.arguments}}
                delta = {"tool_calls": [{"index": part.number, **call}]}
                yield chunk(update.choice, delta, update.likely)
            case None if update.likely:
                yield chunk(update.choice, {"content": ""}, update.likely)
        if update.finish:
            left -= 1
            yield chunk(
                update.choice, {}, (), update.finish, **timings_at_end(talk.texts, left, with_usage)
            )
    if with_usage:
        yield usage_chunk(made, talk.texts)
    yield sse.DONE
