"""OpenAI's interface: /v1/completions, with echo, and with suffix (fill in the middle)."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any

from npurt.serve.engine.protocol import Logprob
from npurt.serve.front import options
from npurt.serve.front.front import Front
from npurt.serve.front.generation import Likely, Texts
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http import limits, sse
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_chat import stream_options
from npurt.serve.interfaces.openai_common import (
    FINISH,
    are_ids,
    head,
    known,
    text_logprobs,
    timings_at_end,
    usage,
    usage_chunk,
)


@dataclass(frozen=True, slots=True)
class Echo:
    """The echo of a prompt before its completion.

    Attributes:
        text: The prompt; "" without echo.
        ids: The prompt's token ids, if their log probabilities are requested.
    """

    text: str = ""
    ids: Sequence[int] = ()

    def logprobs(self, model: ServedModel, prompt: Sequence[Logprob], rest: list[Likely]) -> Any:
        """Return log probabilities of the prompt's tokens, if requested, and of *rest*."""
        if not self.ids:
            return text_logprobs(model, rest, 0)
        likely = [*zip(self.ids[1:], prompt, strict=True), *rest]
        return text_logprobs(model, likely, 0, self.ids[0])


async def completions(front: Front, request: HttpRequest) -> Answer:
    """Complete one prompt or several."""
    fields = request.fields
    fields.text("model")  # the model was chosen by this field
    wanted = options.wanted(fields, request.salt, "max_tokens", "n_predict")
    await options.constrain(fields, wanted)
    wanted.top_logprobs = _logprobs(fields)
    if (fields.integer("best_of") or wanted.choices) != wanted.choices:
        raise wrong("best_of differs from n", "leave best_of out", "best_of", "unsupported")
    found = await request.in_thread(lambda: prompts(front.model, fields))
    if len(found) * wanted.choices > limits.CHOICES:
        raise wrong(f"{len(found)} prompts with n = {wanted.choices} are too many completions",
                    f"ask for {limits.CHOICES} completions at most", "prompt")  # fmt: skip
    echoes = [Echo()] * len(found)
    if fields.flag("echo"):
        wanted.prompt_logprobs = wanted.top_logprobs is not None
        if fields.text("suffix") is not None:
            raise wrong("echo cannot be used with suffix", "leave one of them out", "echo")
        scored, decode = wanted.prompt_logprobs, front.model.tokenizer.decode
        echoes = await request.in_thread(
            lambda: [Echo(decode(ids, special=False), ids if scored else ()) for ids in found]
        )
    chosen = stream_options(fields)
    texts = front.begin(found, wanted)
    texts.progress = chosen is not None and fields.flag("return_progress")
    before = [echo for echo in echoes for _ in range(wanted.choices)]
    if chosen is None:
        return await _whole(front, texts, before, wanted.top_logprobs is not None)
    parts = _parts(front, texts, before, chosen)
    return sse.Stream(parts, texts)


def _logprobs(fields: Fields) -> int | None:
    """Return the number of most likely tokens in ``logprobs``; true counts as 0, false as None."""
    if isinstance(fields.values.get("logprobs"), bool):
        return 0 if fields.flag("logprobs") else None
    return fields.integer("logprobs")


def prompts(model: ServedModel, fields: Fields) -> list[list[int]]:
    """Return the token ids of each prompt in a field: a string, token ids, or a list of these.

    Raises:
        HttpError: The field is something else, or has too many prompts.
    """
    given = fields.values.get("prompt")
    found = given if isinstance(given, list) and not are_ids(given) else [given]
    if len(found) > limits.CHOICES:
        raise wrong(f"there are {len(found)} prompts", f"send {limits.CHOICES} at most", "prompt")
    suffix = fields.text("suffix")
    ids = []
    for each in found:
        if isinstance(each, str) and suffix is not None:
            ids.append(model.around(each, suffix))
        elif isinstance(each, str):
            ids.append(model.encode(each))
        elif are_ids(each) and suffix is None:
            ids.append(known(model, each, "prompt"))
        else:
            raise fields.wrong("prompt", "a string, token ids, or a list of these")
    return ids


async def _whole(front: Front, texts: Texts, before: list[Echo], logged: bool) -> Answer:
    choices = []
    for text in await texts.whole():
        echo = before[text.choice]
        likely = echo.logprobs(front.model, text.prompt, text.likely) if logged else None
        choices.append({
            "index": text.choice,
            "text": echo.text + text.text,
            "logprobs": likely,
            "finish_reason": FINISH[text.finish or "end"],
        })  # fmt: skip
    made = head(front, "cmpl", "text_completion")
    return made | {"choices": choices, "usage": usage(texts), "timings": texts.timings()}


async def _parts(
    front: Front, texts: Texts, before: list[Echo], chosen: Fields
) -> AsyncGenerator[bytes, None]:
    made = head(front, "cmpl", "text_completion")
    with_usage = chosen.flag("include_usage")
    offsets = [0] * len(before)
    scores: list[list[Logprob]] = [[] for _ in before]  # by prompt

    def chunk(
        number: int, text: str, likely: Any = None, finish: str | None = None, **others: Any
    ) -> bytes:
        offsets[number] += len(text)
        choice: dict[str, Any] = {
            "index": number,
            "text": text,
            "logprobs": likely,
            "finish_reason": FINISH[finish] if finish else None,
        }
        unset = {"usage": None} if with_usage else {}
        return sse.data(made | {"choices": [choice]} | unset | others)

    def echoed(number: int) -> bytes:
        echo = before[number]
        likely = echo.logprobs(front.model, scores[number], []) if echo.ids else None
        return chunk(number, echo.text, likely)

    for number, echo in enumerate(before):
        # An echo with log probabilities is sent after the engine has computed them.
        if len(echo.ids) == 1 or (echo.text and not echo.ids):
            yield echoed(number)
    left = len(before)
    async for piece in texts.pieces(front.settings.ping):
        if piece is None:
            yield chunk(texts.first_open, "", **texts.progress_now())
            continue
        number = piece.choice
        if piece.prompt:
            scores[number] += piece.prompt
            if len(scores[number]) == len(before[number].ids) - 1:
                yield echoed(number)
        if piece.text or piece.likely or piece.finish:
            given = piece.likely
            likely = text_logprobs(front.model, given, offsets[number]) if given else None
            left -= piece.finish is not None
            at_end = timings_at_end(texts, left, with_usage) if piece.finish else {}
            yield chunk(number, piece.text, likely, piece.finish, **at_end)
    if with_usage:
        yield usage_chunk(made, texts)
    yield sse.DONE
