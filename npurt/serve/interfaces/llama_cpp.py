"""llama.cpp's interface: /completion and /infill.

Source of the fields: llama.cpp tools/server/README.md.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from npurt.serve.http import sse
from npurt.serve.http.endpoint import Answer, Request
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_common import known, token_text
from npurt.serve.model import options
from npurt.serve.model.front import Front, Wanted
from npurt.serve.model.generation import Likely, Texts
from npurt.serve.model.served_model import ServedModel

STOP_TYPES = {"end": "eos", "length": "limit", "context": "limit", "stop": "word"}


async def completion(front: Front, request: Request) -> Answer:
    """Complete a prompt."""
    given = request.fields.values.get("prompt")
    ids = await request.in_thread(lambda: prompt_of(front.model, given))
    return await _answer(front, request, ids)


async def infill(front: Front, request: Request) -> Answer:
    """Fill in the text between a prefix and a suffix."""
    fields = request.fields
    before, after = fields.text("input_prefix", "") or "", fields.text("input_suffix", "") or ""
    others = [
        f"{each.text('filename', '') or ''}\n{each.required_text('text')}\n"
        for each in fields.objects("input_extra")
    ]
    before = "".join(others) + before + (fields.text("prompt", "") or "")
    ids = await request.in_thread(lambda: front.model.around(before, after))
    return await _answer(front, request, ids)


def prompt_of(model: ServedModel, given: Any) -> list[int]:
    """Return the token ids of *given*: a string, or a list of strings and token ids.

    Raises:
        HttpError: *given* is neither, or contains several prompts.
    """
    parts = given if isinstance(given, list) else [given]
    if len(parts) > 1 and all(isinstance(part, str | list) for part in parts):
        raise wrong("prompt holds several prompts", "send one in a request", "prompt")
    ids: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            ids += model.encode(part, add_bos=None if i == 0 else False)
        elif parts is given and isinstance(part, int) and not isinstance(part, bool):
            ids += known(model, [part], "prompt")
        else:
            raise wrong(f"prompt is {given!r:.60}", "send a string or token ids", "prompt")
    return ids


async def _answer(front: Front, request: Request, prompt: list[int]) -> Answer:
    fields = request.fields
    wanted = options.wanted(fields, request.salt, "n_predict", "max_tokens")
    wanted.choices = 1
    await options.constrain(fields, wanted)
    if fields.has("json_schema"):
        schema = fields.inner("json_schema").values
        asked = {"type": "json_schema", "json_schema": {"schema": schema}}
        await options.constrain(Fields({"response_format": asked}), wanted)
    likeliest = fields.integer("n_probs")
    wanted.top_logprobs = likeliest or None
    stream = fields.flag("stream")
    talk = Completion(front, front.begin([prompt], wanted), wanted, fields)
    talk.texts.progress = stream and fields.flag("return_progress")
    if not stream:
        return await talk.whole()
    return sse.Stream(talk.parts(), talk.texts.cancel)


class Completion:
    """One completion in llama.cpp's form."""

    def __init__(self, front: Front, texts: Texts, wanted: Wanted, fields: Fields) -> None:
        self.texts = texts
        self._front = front
        self._wanted = wanted
        self._prompt = fields.values.get("prompt", "")

    async def whole(self) -> dict[str, Any]:
        """Wait for the end; return the response object of the whole completion."""
        text, likely = "", []
        async for piece in self.texts.pieces():
            assert piece is not None
            text += piece.text
            likely += piece.likely
        return self.final(text, likely)

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream; in the last one, ``stop`` is true."""
        async for piece in self.texts.pieces(self._front.settings.ping):
            if piece is None:
                yield sse.data(self._event("", []) | self.texts.progress_now())
                continue
            if piece.text or piece.likely:
                yield sse.data(self._event(piece.text, piece.likely))
        yield sse.data(self.final("", []))

    def _event(self, text: str, likely: Sequence[Likely]) -> dict[str, Any]:
        choice = self.texts.choices[0]
        found = {
            "index": 0,
            "content": text,
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": choice.count,
            "tokens_evaluated": self.texts.prompt_tokens,
        }
        return found | ({"completion_probabilities": self._chances(likely)} if likely else {})

    def _chances(self, likely: Sequence[Likely]) -> list[dict[str, Any]]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            text, data = token_text(self._front.model, token)
            return {"id": token, "token": text, "bytes": data, "logprob": logprob}

        return [
            entry(token, logprob) | {"top_logprobs": [entry(i, other) for i, other in top]}
            for token, (logprob, top) in likely
        ]

    def final(self, text: str, likely: Sequence[Likely]) -> dict[str, Any]:
        """Return the final object, with the settings and timings."""
        choice = self.texts.choices[0]
        end = choice.finish or "end"
        return self._event(text, likely) | {
            "stop": True,
            "model": self._front.model.name,
            "prompt": self._prompt,
            "stop_type": STOP_TYPES[end],
            "stopping_word": choice.stopped or "",
            "truncated": False,
            "tokens_cached": choice.cached,
            "generation_settings": settings(self._front, self._wanted),
            "timings": choice.timings(),
        }


def settings(front: Front, wanted: Wanted) -> dict[str, Any]:
    """Return the generation settings of a request in llama.cpp's form."""
    sampling = {**front.settings.sampling, **wanted.sampling}
    maximum = front.settings.max_tokens if wanted.max_tokens is None else wanted.max_tokens
    return {
        **{name: value for name, value in sampling.items() if name != "logit_bias"},
        "n_predict": -1 if maximum is None else maximum,
        "stop": [*wanted.stops, *wanted.stop_ids],
        "ignore_eos": wanted.ignore_eos,
    }
