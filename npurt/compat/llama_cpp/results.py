"""Build results in the shapes of llama-cpp-python, which follow OpenAI's API."""

import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any

from npurt.compat.llama_cpp.calls import Part
from npurt.llm.decode.calls.format import CallPart
from npurt.llm.decode.generate import Timing
from npurt.llm.decode.logprobs import TokenLogprob

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}

Result = dict[str, Any]


def head(prefix: str, kind: str, model: str) -> Result:
    """Return the fields common to all chunks of a result."""
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()),
            "model": model}  # fmt: skip


def text_choice(text: str, finish: str | None = None, logprobs: Result | None = None) -> Result:
    """Return the choice of a completion."""
    return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}


def message_choice(message: Result, finish: str, logprobs: Result | None = None) -> Result:
    """Return the choice of a chat completion."""
    return {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}


def delta_choice(
    delta: Result, finish: str | None = None, logprobs: Result | None = None
) -> Result:
    """Return the choice of a chunk of a chat completion."""
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


def message_of(completion: str, parts: Iterable[Part]) -> Result:
    """Return the message with the content or the calls in *parts*.

    Args:
        completion: The id of the completion.
    """
    content, names, arguments = "", list[str](), list[str]()
    for part in parts:
        if isinstance(part, str):
            content += part
        elif part.number == len(names):
            names.append(part.name)
            arguments.append(part.arguments)
        else:
            arguments[-1] += part.arguments
    if not names:
        return {"role": "assistant", "content": content}
    calls = [
        _call(completion, CallPart(i, *call))
        for i, call in enumerate(zip(names, arguments, strict=True))
    ]
    alone = {"function_call": calls[0]["function"]} if len(calls) == 1 else {}
    return {"role": "assistant", "content": content or None, **alone, "tool_calls": calls}


def _call(completion: str, part: CallPart) -> Result:
    return {
        "id": f"call__{part.number}_{part.name}_{completion}",
        "type": "function",
        "function": {"name": part.name, "arguments": part.arguments},
    }


def delta_of(completion: str, part: Part) -> Result:
    """Return the delta of a chunk with *part*; *completion* is the id of the completion."""
    if isinstance(part, str):
        return {"content": part}
    call = _call(completion, part)
    return {"role": None, "content": None, "function_call": call["function"],
            "tool_calls": [{"index": part.number, **call}]}  # fmt: skip


def edge_of(role: str | None, *, calls: bool) -> Result:
    """Return the delta of the first chunk, or of the last chunk if *role* is None.

    Args:
        calls: Whether the message may have calls; the delta then has all keys.
    """
    if calls:
        return {"role": role, "content": None, "function_call": None, "tool_calls": None}
    return {"role": role} if role else {}


def called(finish: str) -> str:
    """Return the finish reason of a message with calls; *finish* is the reason of its text."""
    return "tool_calls" if finish == "stop" else finish


class Logprobs:
    """The log probabilities of a completion, in the shapes of completions and of chats.

    Args:
        piece: A function that returns the text of a token.
        offset: The text offset of the first token in a completion.
    """

    def __init__(self, piece: Callable[[int], str], offset: int = 0) -> None:
        self._piece = piece
        self._offset = offset
        self._given = 0
        self._before: list[tuple[int, TokenLogprob | None]] = []

    def begin(self, tokens: list[tuple[int, TokenLogprob | None]]) -> None:
        """Set the tokens of the prompt; the first token has no log probability."""
        self._before = tokens

    def of_completion(self, timing: Timing) -> Result:
        """Return the log probabilities of the tokens since the last call.

        The top tokens include the sampled token.
        """
        tokens, offsets, values, likely = [], [], list[float | None](), list[Any]()
        new = [(each.token, each) for each in self._next(timing)]
        for token, each in [*self._before, *new]:
            text = self._piece(token)
            tokens.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
            if each is None:
                values.append(None)
                likely.append(None)
                continue
            top = {self._piece(i): value for i, value in each.top} | {text: each.logprob}
            values.append(top[text])
            likely.append(top)
        self._before = []
        return {"tokens": tokens, "text_offset": offsets, "token_logprobs": values,
                "top_logprobs": likely}  # fmt: skip

    def of_chat(self, timing: Timing) -> Result:
        """Return the log probabilities of the tokens since the last call."""
        content = []
        for each in self._next(timing):
            top = [{"token": self._piece(i), "logprob": value, "bytes": None}
                   for i, value in each.top]  # fmt: skip
            content.append({"token": self._piece(each.token), "logprob": each.logprob,
                            "bytes": None, "top_logprobs": top})  # fmt: skip
        return {"content": content, "refusal": None}

    def _next(self, timing: Timing) -> list[TokenLogprob]:
        new = timing.logprobs[self._given :]
        self._given += len(new)
        return new


def usage(timing: Timing) -> dict[str, int]:
    """Return the token counts, without the end token."""
    prompt, written = timing.prompt_tokens, timing.generated_tokens - (timing.finish == "end")
    return {"prompt_tokens": prompt, "completion_tokens": written,
            "total_tokens": prompt + written}  # fmt: skip
