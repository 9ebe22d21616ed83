"""Fields and checks that the modules of OpenAI's interface share."""

import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from npurt.errors import brief
from npurt.serve.front.front import Front
from npurt.serve.front.generation import Likely, Texts
from npurt.serve.front.served_model import ServedModel
from npurt.serve.http import sse
from npurt.serve.http.errors import wrong

# OpenAI's finish_reason by `ChoiceDelta.finish`.
FINISH = {
    "end": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "calls": "tool_calls",
}


def new_id(kind: str) -> str:
    """Return a new unique id, such as chatcmpl-..."""
    return f"{kind}-{secrets.token_hex(12)}"


def now() -> int:
    """Return the seconds since 1970."""
    return int(time.time())


def usage(texts: Texts) -> dict[str, Any]:
    """Return OpenAI's ``usage`` object: the counts of tokens."""
    return {
        "prompt_tokens": texts.prompt_tokens,
        "completion_tokens": texts.completion_tokens,
        "total_tokens": texts.prompt_tokens + texts.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": texts.cached_tokens},
    }


def timings_at_end(texts: Texts, left: int, with_usage: bool) -> dict[str, Any]:
    """Return the field ``timings`` of a choice's last chunk.

    As in llama.cpp, only the last chunk of a stream has it.

    Args:
        texts: The completions.
        left: Number of choices that continue.
        with_usage: Whether a chunk with the usage follows.
    """
    return {} if left or with_usage else {"timings": texts.timings()}


def usage_chunk(made: Mapping[str, Any], texts: Texts) -> bytes:
    """Return the last chunk of a stream with the usage; *made* are the first fields of chunks."""
    return sse.data({**made, "choices": [], "usage": usage(texts), "timings": texts.timings()})


def head(front: Front, kind: str, of: str) -> dict[str, Any]:
    """Return the first fields of a response object, which all chunks of a stream repeat."""
    return {
        "id": new_id(kind),
        "object": of,
        "created": now(),
        "model": front.model.name,
        "system_fingerprint": front.model.fingerprint,
    }


def token_text(model: ServedModel, token: int) -> tuple[str, list[int]]:
    """Return the text of *token*, and its bytes, which may be incomplete UTF-8."""
    data = model.tokenizer.piece(token)
    return data.decode("utf-8", "replace"), list(data)


def are_ids(value: object) -> TypeGuard[list[int]]:
    """Return whether *value* is a list of integers; it may be empty."""
    return isinstance(value, list) and set(map(type, value)) <= {int}


def known(model: ServedModel, ids: Sequence[int], param: str) -> list[int]:
    """Return *ids*.

    Raises:
        HttpError: An id is not in the vocabulary.
    """
    count = model.tokenizer.n_vocab
    if ids and not 0 <= min(ids) <= max(ids) < count:
        unknown = next(i for i in ids if not 0 <= i < count)
        raise wrong(f"token id {brief(unknown)} is not in the vocabulary of {count}",
                    "use ids of /tokenize", param)  # fmt: skip
    return list(ids)


def chat_logprobs(model: ServedModel, likely: Sequence[Likely]) -> dict[str, Any]:
    """Return log probabilities in the form of chat completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text, data = token_text(model, token)
        return {"token": text, "logprob": logprob, "bytes": data}

    content = [
        entry(token, logprob) | {"top_logprobs": [entry(i, other) for i, other in top]}
        for token, (logprob, top) in likely
    ]
    return {"content": content, "refusal": None}


def text_logprobs(
    model: ServedModel, likely: Sequence[Likely], offset: int, first: int | None = None
) -> dict[str, Any]:
    """Return log probabilities in the form of text completions.

    Args:
        model: The model.
        likely: The tokens with their log probabilities.
        offset: Position of the first token in the text.
        first: A prompt's first token, which comes before *likely* and has no log probability.
    """
    if first is not None:
        text = token_text(model, first)[0]
        shown = 0 if first in model.tokenizer.control else len(text)
        rest = text_logprobs(model, likely, offset + shown)
        begin = {"tokens": text, "token_logprobs": None, "top_logprobs": None,
                 "text_offset": offset}  # fmt: skip
        return {name: [value, *rest[name]] for name, value in begin.items()}
    texts = [token_text(model, token)[0] for token, _ in likely]
    offsets = list(itertools.accumulate(map(len, texts), initial=offset))[:-1]
    return {
        "tokens": texts,
        "token_logprobs": [logprob for _, (logprob, _) in likely],
        "top_logprobs": [
            {token_text(model, i)[0]: other for i, other in top} for _, (_, top) in likely
        ],
        "text_offset": offsets,
    }
