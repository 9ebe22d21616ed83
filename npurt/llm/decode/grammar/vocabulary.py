"""Build llguidance's tokenizer from a model's tokenizer, once for each tokenizer."""

import threading
import weakref
from typing import Any

from npurt.base.once import once
from npurt.llm.decode.grammar.library import llguidance
from npurt.llm.session.background import Background
from npurt.llm.text.tokenizer import Tokenizer

_known: weakref.WeakKeyDictionary[Tokenizer, Background[Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def vocabulary_of(tokenizer: Tokenizer) -> Background[Any]:
    """Return llguidance's tokenizer for *tokenizer*, which a background thread builds.

    Building takes 0.5 s for 150,000 tokens (bench/RESULTS.md).  Kernels can run at the same time,
    but Python code cannot: llguidance holds the interpreter's lock.
    """
    with _lock:
        if tokenizer not in _known:
            _known[tokenizer] = Background(lambda: _build(tokenizer), "npurt grammar")
        return _known[tokenizer]


@once
def vocabulary_of_bytes() -> Any:
    """Return a tokenizer of llguidance with one token for each byte.

    It serves to check a grammar without a model.  Token 256 is the end token.
    """
    return llguidance().LLTokenizer(_Bytes(), eos_token=_Bytes.eos_token_id)


class _Bytes:
    """The vocabulary of single bytes, with the attributes that llguidance's `LLTokenizer` reads."""

    is_tokenizer_wrapper = True
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def _build(tokenizer: Tokenizer) -> Any:
    vocabulary = GrammarVocabulary(tokenizer)
    return llguidance().LLTokenizer(vocabulary, eos_token=vocabulary.ends)


class GrammarVocabulary:
    """A model's vocabulary, with the attributes that llguidance's `LLTokenizer` reads.

    Attributes:
        tokens: The bytes of each token.
        special_token_ids: Ids of control tokens, which match no text.
        ends: Ids of end tokens.  For a model without end tokens, an additional token takes their
            place; it is never sampled.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokens = [tokenizer.piece(token) for token in range(tokenizer.n_vocab)]
        self.special_token_ids = sorted(tokenizer.control | tokenizer.eog)
        self.ends = sorted(tokenizer.eog)
        if not self.ends:
            self.ends = [tokenizer.n_vocab]
            self.special_token_ids.append(tokenizer.n_vocab)
            self.tokens.append(b"<npurt end>")
        self.eos_token_id = self.ends[0]
        self.bos_token_id = tokenizer.bos
        usual = {piece: token for token, piece in enumerate(self.tokens) if len(piece) == 1}
        self._bytes = [usual.get(bytes([byte])) for byte in range(256)]

    def __call__(self, text: str) -> list[int]:
        """Return one token id for each byte of *text*.  With `NO_FORCING`, this is never called."""
        letters = [self._bytes[byte] for byte in text.encode()]
        return [letter for letter in letters if letter is not None]
