"""The tokens of a model, as llguidance reads them; built once for each tokenizer."""

import threading
import weakref
from typing import Any

from npurt.llm.decode.grammar.library import llguidance
from npurt.llm.session.background import Background
from npurt.llm.text.tokenizer import Tokenizer
from npurt.once import once

_known: weakref.WeakKeyDictionary[Tokenizer, Background[Any]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def vocabulary_of(tokenizer: Tokenizer) -> Background[Any]:
    """Return the future tokenizer of llguidance for *tokenizer*, which a thread builds.

    That takes half a second for 150,000 tokens (bench/RESULTS.md).  Kernels run meanwhile; Python
    does not, because the package holds the interpreter's lock.
    """
    with _lock:
        if tokenizer not in _known:
            _known[tokenizer] = Background(lambda: _build(tokenizer), "npurt grammar")
        return _known[tokenizer]


@once
def vocabulary_of_bytes() -> Any:
    """Return the tokenizer of llguidance whose tokens are bytes, to try a grammar without a model.

    Token 256 ends a text.
    """
    return llguidance().LLTokenizer(_Bytes(), eos_token=_Bytes.eos_token_id)


class _Bytes:
    """What llguidance's `LLTokenizer` reads; see `Vocabulary`."""

    is_tokenizer_wrapper = True
    tokens = (*(bytes([byte]) for byte in range(256)), b"<end>")
    special_token_ids = (256,)
    eos_token_id = 256
    bos_token_id = None

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def _build(tokenizer: Tokenizer) -> Any:
    vocabulary = Vocabulary(tokenizer)
    return llguidance().LLTokenizer(vocabulary, eos_token=vocabulary.ends)


class Vocabulary:
    """What llguidance's `LLTokenizer` reads.

    Attributes:
        tokens: The bytes of each token.
        special_token_ids: Ids of markup, which no text becomes.
        ends: Ids that may follow a complete text.  A model without any gets one more token, which
            is never sampled.
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
        """Return ids of *text*, one for each byte; with `NO_FORCING` it is never called."""
        letters = [self._bytes[byte] for byte in text.encode()]
        return [letter for letter in letters if letter is not None]
