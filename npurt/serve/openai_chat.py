"""OpenAI's interface: /v1/chat/completions."""

from collections.abc import AsyncGenerator
from typing import Any

from npurt.serve import limits, options, sse
from npurt.serve.endpoint import Answer, Request
from npurt.serve.errors import wrong
from npurt.serve.fields import Fields
from npurt.serve.front import Front
from npurt.serve.generation import Piece, Texts
from npurt.serve.openai_common import FINISH, chat_logprobs, head, usage


async def chat(front: Front, request: Request) -> Answer:
    """Answer messages."""
    fields = request.fields
    fields.text("model")  # any name means the only model
    wanted = options.wanted(
        fields, request.salt, "max_completion_tokens", "max_tokens", "n_predict"
    )
    await options.constrain(fields, wanted)
    if fields.flag("logprobs"):
        wanted.top_logprobs = fields.integer("top_logprobs", 0, limits.TOP_LOGPROBS, 0)
    elif fields.integer("top_logprobs"):
        raise wrong("top_logprobs is set without logprobs", "set logprobs to true as well",
                    "top_logprobs")  # fmt: skip
    prompt = front.model.prompt(messages(fields), variables=template_variables(fields))
    begin_stream = stream_options(fields)
    texts = front.begin([front.model.encode_prompt(prompt)], wanted)
    logged = wanted.top_logprobs is not None
    if begin_stream is None:
        return await _whole(front, texts, logged)
    parts = _parts(front, texts, begin_stream)
    return sse.Stream(parts, texts.cancel)


def messages(fields: Fields) -> list[dict[str, Any]]:
    """Return the messages of a chat.

    Raises:
        HttpError: There are none, or one has no role.
    """
    found = fields.objects("messages", limits.MESSAGES)
    if not found:
        raise wrong("messages is empty", "send at least one message", "messages")
    for each in found:
        each.required_text("role")
        content = each.values.get("content")
        if not (content is None or isinstance(content, str | list)):
            raise each.wrong("content", "a string, or a list of parts")
    return [each.values for each in found]  # type: ignore[misc]  # they are dicts


def template_variables(fields: Fields) -> dict[str, Any]:
    """Return variables of the chat template that a request sets."""
    given = dict(fields.inner("chat_template_kwargs").values)
    reserved = {"messages", "tools", "add_generation_prompt"} & given.keys()
    if reserved:
        raise wrong(f"chat_template_kwargs sets {min(reserved)}", "set it beside messages",
                    "chat_template_kwargs")  # fmt: skip
    if fields.has("enable_thinking"):
        given["enable_thinking"] = fields.flag("enable_thinking")
    return given


def stream_options(fields: Fields) -> Fields | None:
    """Return ``stream_options`` of a request that wants a stream, else None."""
    chosen = fields.inner("stream_options")
    chosen.flag("include_usage")
    return chosen if fields.flag("stream") else None


async def _whole(front: Front, texts: Texts, logged: bool) -> Answer:
    whole = await texts.whole()
    choices = [
        {
            "index": text.choice,
            "message": {"role": "assistant", "content": text.text, "refusal": None},
            "logprobs": chat_logprobs(front.model, text.likely) if logged else None,
            "finish_reason": FINISH[text.finish or "end"],
        }
        for text in whole
    ]
    made = head(front, "chatcmpl", "chat.completion")
    return made | {"choices": choices, "usage": usage(texts)}


async def _parts(front: Front, texts: Texts, chosen: Fields) -> AsyncGenerator[bytes, None]:
    made = head(front, "chatcmpl", "chat.completion.chunk")
    with_usage = chosen.flag("include_usage")

    def chunk(number: int, delta: dict[str, Any], piece: Piece | None = None) -> bytes:
        finish = None if piece is None or piece.finish is None else FINISH[piece.finish]
        likely = chat_logprobs(front.model, piece.likely) if piece and piece.likely else None
        choice = {"index": number, "delta": delta, "logprobs": likely, "finish_reason": finish}
        unset = {"usage": None} if with_usage else {}
        return sse.data(made | {"choices": [choice]} | unset)

    for choice in texts.choices:
        yield chunk(choice.number, {"role": "assistant", "content": ""})
    async for piece in texts.pieces(front.settings.ping):
        if piece is None:
            yield chunk(0, {})  # clients take no comment for a sign of life
            continue
        if piece.text or piece.likely:
            finish, piece.finish = piece.finish, None
            yield chunk(piece.choice, {"content": piece.text}, piece)
            piece.finish, piece.likely = finish, []
        if piece.finish:
            yield chunk(piece.choice, {}, piece)
    if with_usage:
        yield sse.data(made | {"choices": [], "usage": usage(texts)})
    yield sse.DONE
