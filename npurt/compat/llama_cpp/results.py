"""The shapes of results of llama-cpp-python, which are those of OpenAI's interface."""

import time
import uuid
from collections.abc import Callable
from typing import Any

from npurt.llm.decode.generate import Timing
from npurt.llm.decode.logprobs import TokenLogprob

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}

Result = dict[str, Any]


def head(prefix: str, kind: str, model: str) -> Result:
    """Return what the chunks of a result share."""
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()),
            "model": model}  # fmt: skip


def text_choice(text: str, finish: str | None = None, logprobs: Result | None = None) -> Result:
    """Return the choice of a completion."""
    return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}


def message_choice(part: Result, finish: str, logprobs: Result | None = None) -> Result:
    """Return the choice of an answer, whose message has *part*: content or a call."""
    return {"index": 0, "message": {"role": "assistant", **part}, "logprobs": logprobs,
            "finish_reason": finish}  # fmt: skip


def called(finish: str) -> str:
    """Return why a call ended, where a text would have ended with *finish*."""
    return "tool_calls" if finish == "stop" else finish


def delta_choice(
    delta: Result, finish: str | None = None, logprobs: Result | None = None
) -> Result:
    """Return the choice of a chunk of an answer."""
    return {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}


class Logprobs:
    """The log probabilities of a text, in the shapes of completions and of chats.

    Args:
        piece: The text of a token.
        offset: Characters before the text, which the offsets of a completion count.
    """

    def __init__(self, piece: Callable[[int], str], offset: int = 0) -> None:
        self._piece = piece
        self._offset = offset
        self._given = 0

    def of_completion(self, timing: Timing) -> Result:
        """Return those of the tokens since the last call; the token itself is among the top."""
        tokens, offsets, likely = [], [], []
        for each in self._next(timing):
            text = self._piece(each.token)
            tokens.append(text)
            offsets.append(self._offset)
            self._offset += len(text)
            likely.append({self._piece(i): value for i, value in each.top} | {text: each.logprob})
        values = [top[text] for top, text in zip(likely, tokens, strict=True)]
        return {"tokens": tokens, "text_offset": offsets, "token_logprobs": values,
                "top_logprobs": likely}  # fmt: skip

    def of_chat(self, timing: Timing) -> Result:
        """Return those of the tokens since the last call."""
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
    """Return the counts of tokens; the end token is none."""
    prompt, written = timing.prompt_tokens, timing.generated_tokens - (timing.finish == "end")
    return {"prompt_tokens": prompt, "completion_tokens": written,
            "total_tokens": prompt + written}  # fmt: skip
