"""llama.cpp's interface: /completion and /infill.

Source of the fields: llama.cpp tools/server/README.md.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from npurt.errors import brief
from npurt.serve.front import options
from npurt.serve.front.front import Front, SamplingParams
from npurt.serve.front.generation import Choice, Likely, Texts
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http import limits, sse
from npurt.serve.http.endpoint import Answer, HttpRequest
from npurt.serve.http.errors import wrong
from npurt.serve.http.fields import Fields
from npurt.serve.interfaces.openai_common import are_ids, known, token_text

STOP_TYPES = {"end": "eos", "length": "limit", "context": "limit", "stop": "word"}


async def completion(front: Front, request: HttpRequest) -> Answer:
    """Complete one prompt or several."""
    given = request.fields.values.get("prompt")
    found = await request.in_thread(lambda: prompts_of(front.model, given))
    return await _answer(front, request, found)


async def infill(front: Front, request: HttpRequest) -> Answer:
    """Fill in the text between a prefix and a suffix."""
    fields = request.fields
    before, after = fields.text("input_prefix", "") or "", fields.text("input_suffix", "") or ""
    others = [
        f"{each.text('filename', '') or ''}\n{each.required_text('text')}\n"
        for each in fields.objects("input_extra")
    ]
    before = "".join(others) + before + (fields.text("prompt", "") or "")
    ids = await request.in_thread(lambda: front.model.around(before, after))
    return await _answer(front, request, [ids])


def prompts_of(model: ServedModel, given: Any) -> list[list[int]]:
    """Return the token ids of each prompt in *given*.

    A prompt is a string, a list of strings and token ids, or an object with the string
    ``prompt_string``.  A list with a list, an object, or strings alone has several prompts.

    Raises:
        HttpError: *given* is something else, or has too many prompts.
    """
    several = isinstance(given, list) and (
        all(isinstance(part, str) for part in given)
        or any(isinstance(part, list | Mapping) for part in given)
    )
    found = given if several and isinstance(given, list) else [given]
    if not found:
        raise wrong("prompt is an empty list", "send at least one prompt", "prompt")
    if len(found) > limits.CHOICES:
        raise wrong(f"there are {len(found)} prompts", f"send {limits.CHOICES} at most", "prompt")
    return [_ids(model, each) for each in found]


def _ids(model: ServedModel, given: Any) -> list[int]:
    """Return the token ids of one prompt.

    Raises:
        HttpError: *given* is not a prompt.
    """
    if isinstance(given, Mapping):
        if given.get("multimodal_data"):
            raise wrong("npurt reads no pictures and no sound", "leave multimodal_data out",
                        "prompt", "unsupported")  # fmt: skip
        given = given.get("prompt_string")
    parts = given if isinstance(given, list) and given else [given]
    ids: list[int] = []
    if are_ids(given):
        return known(model, given, "prompt")
    for i, part in enumerate(parts):
        if isinstance(part, str):
            ids += model.encode(part, add_bos=None if i == 0 else False)
        elif parts is given and are_ids([part]):
            ids += known(model, [part], "prompt")
        else:
            raise wrong(f"prompt is {brief(given)}", "send a string or token ids", "prompt")
    return ids


async def _answer(front: Front, request: HttpRequest, prompts: list[list[int]]) -> Answer:
    fields = request.fields
    wanted = options.wanted(fields, request.salt, "n_predict", "max_tokens")
    wanted.choices = fields.integer("n_cmpl") or wanted.choices
    if len(prompts) * wanted.choices > limits.CHOICES:
        raise wrong(f"{len(prompts)} prompts with n_cmpl = {wanted.choices} are too many",
                    f"ask for {limits.CHOICES} completions at most", "prompt")  # fmt: skip
    await options.constrain(fields, wanted)
    likeliest = fields.integer("n_probs")
    wanted.top_logprobs = likeliest or None
    stream = fields.flag("stream")
    talk = Completions(front, front.begin(prompts, wanted), wanted, fields, prompts)
    talk.texts.progress = stream and fields.flag("return_progress")
    if not stream:
        found = await talk.whole()
        return found if len(found) > 1 else found[0]
    return sse.Stream(talk.parts(), talk.texts)


class Completions:
    """The completions of a request in llama.cpp's form."""

    def __init__(
        self,
        front: Front,
        texts: Texts,
        wanted: SamplingParams,
        fields: Fields,
        prompts: list[list[int]],
    ) -> None:
        self.texts = texts
        self._front = front
        self._wanted = wanted
        self._prompts = prompts
        self._timed = fields.flag("timings_per_token")
        self._with_tokens = fields.flag("return_tokens")
        self._fields: list[str] = fields.items("response_fields")

    async def whole(self) -> list[dict[str, Any]]:
        """Wait for the end; return the response object of each completion."""
        count = len(self.texts.choices)
        text: list[list[str]] = [[] for _ in range(count)]
        likely: list[list[Likely]] = [[] for _ in range(count)]
        tokens: list[list[int]] = [[] for _ in range(count)]
        async for piece in self.texts.pieces():
            assert piece is not None
            text[piece.choice].append(piece.text)
            likely[piece.choice] += piece.likely
            if self._with_tokens:
                tokens[piece.choice] += piece.tokens
        return [
            self._final(choice, "".join(text[i]), likely[i], tokens[i])
            for i, choice in enumerate(self.texts.choices)
        ]

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of a stream; in the last one of a completion, ``stop`` is true."""
        async for piece in self.texts.pieces(self._front.settings.ping):
            choice = self.texts.choices[piece.choice if piece else self.texts.first_open]
            if piece is None:
                yield sse.data(self._event(choice) | self.texts.progress_now())
                continue
            tokens = piece.tokens
            if piece.text or piece.likely:
                event = self._event(choice, piece.text, piece.likely, tokens)
                yield sse.data(event | ({"timings": choice.timings()} if self._timed else {}))
                tokens = ()
            if piece.finish:
                yield sse.data(self._final(choice, tokens=tokens))

    def _event(
        self,
        choice: Choice,
        text: str = "",
        likely: Sequence[Likely] = (),
        tokens: Sequence[int] = (),
    ) -> dict[str, Any]:
        found = {
            "index": choice.number,
            "content": text,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": choice.count,
            "tokens_evaluated": choice.prompt_tokens,
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

    def _final(
        self,
        choice: Choice,
        text: str = "",
        likely: Sequence[Likely] = (),
        tokens: Sequence[int] = (),
    ) -> dict[str, Any]:
        """Return the final object of a completion, with the settings and timings."""
        end = choice.finish or "end"
        prompt = self._prompts[choice.number // self._wanted.choices]
        made = self._event(choice, text, likely, tokens) | {
            "stop": True,
            "model": self._front.model.name,
            "prompt": self._front.model.tokenizer.decode(prompt),
            "has_new_line": choice.new_line,
            "stop_type": STOP_TYPES[end],
            "stopping_word": choice.stopped or "",
            "truncated": end == "context",
            "tokens_cached": choice.cached,
            "generation_settings": settings(self._front, self._wanted, choice.sampling),
            "timings": choice.timings(),
        }
        return selected(made, self._fields) if self._fields else made


def selected(made: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return the fields *paths* of *made*, such as ``timings/prompt_n``; others are left out."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = made
        for step in path.split("/"):
            value = value.get(step, found) if isinstance(value, Mapping) else found
        if value is not found:  # *found* stands for a missing field
            found[path] = value
    return found


def settings(
    front: Front, wanted: SamplingParams, used: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the generation settings of a request in llama.cpp's form.

    Args:
        front: The front, for the server's defaults.
        wanted: The options of the request.
        used: The sampling settings of one completion, with the seed that was drawn for it.
    """
    sampling = {**front.settings.sampling, **wanted.sampling} if used is None else used
    maximum = front.settings.max_tokens if wanted.max_tokens is None else wanted.max_tokens
    return {
        **{name: value for name, value in sampling.items() if name != "logit_bias"},
        "n_predict": -1 if maximum is None else maximum,
        "stop": [*wanted.stops, *wanted.stop_ids],
        "ignore_eos": wanted.ignore_eos,
    }
