"""Which tokens contain the texts that end a repetition, for DRY.

Source: llama.cpp src/llama-sampling.cpp, MIT: which sequences of tokens a text is looked for in.
"""

import weakref
from collections.abc import Mapping, Sequence

from npurt.llm.decode.samplers.candidates import Tails
from npurt.llm.text.tokenizer import Tokenizer

MAX_TEXT = 40  # characters of a text, and
MAX_TAIL = 20  # tokens after the first one

_known: weakref.WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], Mapping[int, Tails]]]
_known = weakref.WeakKeyDictionary()


def breakers_of(tokenizer: Tokenizer, texts: Sequence[str]) -> Mapping[int, Tails]:
    """Return the sequences of tokens that contain one of *texts*.

    The result has, for each first token, the tokens that follow it: none if the token contains a
    whole text; those of the rest if it ends with the beginning of one.
    """
    wanted = tuple(texts)
    known = _known.setdefault(tokenizer, {})
    if wanted not in known:
        known.clear()  # of each tokenizer the latest
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
