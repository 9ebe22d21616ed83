"""Answer chat messages for every interface: build the prompt, split thoughts, answer and calls."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Self

from npurt.errors import NpurtError
from npurt.llm.decode.calls.choose import format_of
from npurt.llm.decode.calls.format import CallPart
from npurt.llm.decode.calls.reading import BEGIN, END, Part, Reader, begins_in_thought
from npurt.llm.decode.calls.strict import Markers, grammar
from npurt.llm.decode.grammar.grammar import Grammar
from npurt.llm.text.turns import fitted, without
from npurt.serve.front.front import Front, SamplingParams
from npurt.serve.front.generation import ChoiceDelta, Texts
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http.endpoint import HttpRequest
from npurt.serve.http.errors import wrong
from npurt.serve.tools.wanted import Tools, reader_format


class Conversation:
    """The completions of a chat request, parsed into thoughts, answer and calls.

    Attributes:
        texts: The completions.
    """

    @classmethod
    async def of(
        cls,
        front: Front,
        request: HttpRequest,
        messages: Sequence[Mapping[str, Any]],
        wanted: SamplingParams,
        tools: Tools | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        apart: bool = True,
        before: str = "",
        prompted: bool = True,
        truncate: bool = False,
    ) -> Self:
        """Begin to answer *messages*.

        Args:
            apart: Whether thoughts are separated from the answer.
            before: Text appended to the prompt: the beginning of the answer, not returned.
            prompted: Whether the prompt ends with the start of an answer; always with *before*.
            truncate: Whether the oldest turns are left out if the prompt is too long.

        Raises:
            HttpError: The queue is full, or the request is invalid.
        """
        chosen = tools or Tools()
        front.require_capacity(wanted.choices)  # before rendering and tokenizing

        prompt, ids = await prompt_of(
            front, request, messages, chosen, variables, before=before, prompted=prompted,
            n_ctx=front.ready().n_ctx if truncate else None, max_tokens=wanted.max_tokens,
        )  # fmt: skip
        # An answer of the request's own form has no calls.
        tools = Tools() if wanted.constrained and not chosen.forced else chosen
        if tools.forced:
            await asyncio.to_thread(tools.check, tools.forced)
        if tools.strict:
            thinks = apart and not before and front.model.thinks
            wanted.lark = await asyncio.to_thread(  # compiling the grammar may take a second
                _grammar, front.model, tools, prompt, thinks=thinks
            )
        return cls(front, prompt, ids, wanted, tools, apart=apart and not before)

    def __init__(
        self,
        front: Front,
        prompt: str,
        ids: Sequence[int],
        wanted: SamplingParams,
        tools: Tools,
        *,
        apart: bool,
    ) -> None:
        """Begin the completions of *prompt*, whose tokens are *ids*; see `of`."""
        model = front.model
        calls = reader_format(tools, format_of(model.source))
        thinks = apart and model.thinks and not tools.forced
        markup = (BEGIN, END) if thinks else ()
        wanted.shown = model.markup((*markup, *(calls.markup if calls else ())))
        if tools.forced:
            wanted.response_format = tools.response_format()
        self._several = tools.several
        self._readers = [
            Reader(
                calls,
                tools.schemas,
                thinks=thinks,
                within=begins_in_thought(prompt),
                forced=tools.forced,
            )
            for _ in range(wanted.choices)
        ]
        self._ping = front.settings.ping
        self.texts: Texts = front.begin([ids], wanted)

    def ended(self, choice: int) -> int:
        """Return the number of calls of *choice* that are complete."""
        return self._readers[choice].ended

    async def updates(self, *, signs: bool = True) -> AsyncGenerator[ChoiceDelta | None, None]:
        """Yield new output; with *signs*, yield None after `ServerSettings.ping` silent seconds.

        The next iteration changes the yielded object.

        Raises:
            HttpError: A choice failed.
        """
        time = asyncio.get_running_loop().time
        last = time()  # time of the last yield
        async for piece in self.texts.pieces(self._ping if signs else None):
            if piece is None:
                last = time()
                yield None
                continue
            reader = self._readers[piece.choice]
            parts = list(reader.push(piece.text))
            if piece.finish:
                parts += reader.finish(cut=piece.finish in ("length", "context"))
            finish = piece.finish
            if reader.ended and not self._several:
                parts = _to_first_call(parts)
                self.texts.stop(piece.choice)
                finish = "stop"
            if reader.called and finish in ("end", "stop"):
                finish = "calls"
            piece.finish = None
            for part in parts:
                piece.part = part
                yield piece
                piece.likely = []
            piece.part, piece.finish = None, finish
            if piece.likely or finish:
                yield piece
            if parts or finish:
                last = time()
            elif signs and time() - last >= self._ping:  # tokens of a call are held back
                last = time()
                yield None


async def prompt_of(
    front: Front,
    request: HttpRequest,
    messages: Sequence[Mapping[str, Any]],
    tools: Tools,
    variables: Mapping[str, Any] | None,
    *,
    before: str = "",
    prompted: bool = True,
    n_ctx: int | None = None,
    max_tokens: int | None = None,
) -> tuple[str, list[int]]:
    """Return the prompt of *messages* and its token ids.

    If *n_ctx* is given, the oldest turns that do not fit in so many positions, with an answer of
    *max_tokens* tokens, are left out.  Other arguments are those of `Conversation.of`.
    """
    prompts: dict[int, str] = {}  # by the number of messages

    def render(kept: Sequence[Mapping[str, Any]]) -> list[int]:
        prompt = front.model.prompt(
            kept, tools=tools.listed, variables=variables,
            add_generation_prompt=prompted or bool(before),
        )  # fmt: skip
        prompts[len(kept)] = prompt + before
        return front.model.encode_prompt(prompt + before)

    def prepared() -> tuple[str, list[int]]:
        if n_ctx is None:
            ids = render(messages)
            return prompts[len(messages)], ids
        left_out, ids = fitted(messages, render, n_ctx, max_tokens)
        return prompts[len(without(messages, left_out))], ids

    return await request.in_thread(prepared)


def _grammar(model: ServedModel, tools: Tools, prompt: str, *, thinks: bool) -> str:
    """Return the grammar of answers to *prompt* in which strict calls match their schemas.

    Raises:
        HttpError: A schema is invalid or too large.
    """
    markers = Markers(lambda text: next(iter(model.markup([text])), None))
    tools.check(tools.strict)
    try:
        rules = format_of(model.source).rules(tools.checked, markers)
        thought = (BEGIN, END) if thinks else None
        return Grammar.from_lark(
            grammar(rules, markers, thought, within=begins_in_thought(prompt))
        ).text
    except NpurtError as error:
        raise wrong(error.what, error.remedy, "tools") from error


def _to_first_call(parts: list[Part]) -> list[Part]:
    first = [i for i, part in enumerate(parts) if isinstance(part, CallPart) and not part.number]
    return parts[: first[-1] + 1] if first else []
