"""The shapes of results of llama-cpp-python, which are those of OpenAI's interface."""

import time
import uuid
from typing import Any

from npurt.llm.decode.generate import Timing

FINISH = {"end": "stop", "stop": "stop", "length": "length", "context": "length"}

Result = dict[str, Any]


def head(prefix: str, kind: str, model: str) -> Result:
    """Return what the chunks of a result share."""
    return {"id": f"{prefix}-{uuid.uuid4()}", "object": kind, "created": int(time.time()),
            "model": model}  # fmt: skip


def text_choice(text: str, finish: str | None = None) -> Result:
    """Return the choice of a completion."""
    return {"text": text, "index": 0, "logprobs": None, "finish_reason": finish}


def message_choice(text: str, finish: str) -> Result:
    """Return the choice of an answer."""
    return {"index": 0, "message": {"role": "assistant", "content": text}, "logprobs": None,
            "finish_reason": finish}  # fmt: skip


def delta_choice(delta: dict[str, str], finish: str | None = None) -> Result:
    """Return the choice of a chunk of an answer."""
    return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}


def usage(timing: Timing) -> dict[str, int]:
    """Return the counts of tokens; the end token is none."""
    prompt, written = timing.prompt_tokens, timing.generated_tokens - (timing.finish == "end")
    return {"prompt_tokens": prompt, "completion_tokens": written,
            "total_tokens": prompt + written}  # fmt: skip
