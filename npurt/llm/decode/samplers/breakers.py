"""Find the token sequences that contain the sequence breakers of DRY.

A sequence breaker is a string that ends a repetition.
Source: llama.cpp src/llama-sampling.cpp, MIT: which token sequences are searched for a string.
"""

import weakref
from collections.abc import Mapping, Sequence

from npurt.llm.decode.samplers.candidates import Tails
from npurt.llm.text.tokenizer import Tokenizer

MAX_TEXT = 40  # characters of a sequence breaker; the rest is ignored
MAX_TAIL = 20  # tokens of a token sequence after its first token

_known: weakref.WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], Mapping[int, Tails]]]
_known = weakref.WeakKeyDictionary()


def breakers_of(tokenizer: Tokenizer, texts: Sequence[str]) -> Mapping[int, Tails]:
    """Return the token sequences that contain one of *texts*.

    The result maps the first token of a sequence to the possible tails: the tokens after it.  The
    tail is empty if the first token contains a whole text.  If the first token ends with the
    beginning of a text, the tail has the tokens of the rest of that text.
    """
    wanted = tuple(texts)
    known = _known.setdefault(tokenizer, {})
    if wanted not in known:
        known.clear()  # only the latest result of each tokenizer is cached
        known[wanted] = _found(tokenizer, wanted)
    return known[wanted]


def _found(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[int, Tails]:
    heads: dict[int, set[tuple[int, ...]]] = {}
    pieces = [tokenizer.piece(token) for token in range(tokenizer.n_vocab)]
    for text in texts:
        whole = text[:MAX_TEXT]
        data = whole.encode()
        starts = {whole[:size].encode(): whole[size:] for size in range(1, len(whole))}
        tails = {start: _tail(tokenizer, rest) for start, rest in starts.items()}
        for token, piece in enumerate(pieces):
            if data in piece:
                heads.setdefault(token, set()).add(())
                continue
            for start, tail in tails.items():
                if piece.endswith(start):
                    heads.setdefault(token, set()).add(tail)
    return {token: tuple(sorted(tails)) for token, tails in heads.items()}


def _tail(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return tuple(tokenizer.encode(text, add_bos=False, special=False)[:MAX_TAIL])
