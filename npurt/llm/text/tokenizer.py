"""Convert text to token ids and back, with the tokenizer that a GGUF file describes.

The HuggingFace tokenizers library encodes text with settings from the file; `detokenize` decodes
ids.  The ids equal llama.cpp's, with two exceptions.  A token of kind normal is text even if its
text is ``</s>``, as in Qwen's vocabulary; llama.cpp treats this token as the end of a generation.
WordPiece encodes words of more than 100 characters as the unknown token, as BERT's tokenizer does.
Text is not normalised (no NFC), as in llama.cpp; only WordPiece normalises text, as BERT does.

Building a tokenizer takes some 300 bytes per token, 250 per merge and 100 per byte of markup: 80 MB
for a vocabulary of 150,000 tokens, and slightly more than 1 GB for the largest vocabulary that the
limits below allow.
"""

import math
import re
import threading
from collections.abc import Iterable
from itertools import groupby, repeat
from typing import Self

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from npurt.errors import LayoutError, ModelFormatError, SettingError
from npurt.llm.file.metadata import (
    CONVERT_AGAIN,
    FLOATS,
    INTEGERS,
    Metadata,
    optional,
    require,
    strings,
)
from npurt.llm.file.string_array import StringArray
from npurt.llm.text.detokenize import SPACE, Detokenizer, Pieces, join
from npurt.llm.text.pretokenize import Rule, rule
from npurt.llm.text.vocabulary import (
    BPE,
    SENTENCEPIECE,
    WORDPIECE,
    TokenType,
    Vocabulary,
    distinct,
    per_token,
    token_texts,
    tokens_of,
)

SURROGATE = re.compile("[\ud800-\udfff]")

# No known tokenizer exceeds these limits.  gpt-oss has 446,189 merges for 201,088 tokens; Llama 3
# and GLM have a similar number of merges per token.  Llasa, a speech model, has 65,536 tokens that
# may be markup, with less than 1 MB of text.
MERGES_PER_TOKEN = 8
MAX_MERGES = 1 << 21
MAX_MERGE_TEXT = 1 << 26  # bytes
MAX_MARKUP = 1 << 17
MAX_MARKUP_TEXT = 1 << 21  # bytes
LONG_TEXT = 1 << 15  # characters from which on `encode` lets other threads run
MAX_TEXT = 1 << 22  # characters: about a million tokens, the longest context of any model
MAX_PIECE = 128  # characters of a SentencePiece token, because `_merges` tries every split


class Tokenizer:
    """The tokenizer of one model.  Several threads may use it.

    Attributes:
        n_vocab: The number of ids.
        bos, eos: The ids of the BOS and EOS tokens, or None; for WordPiece, of [CLS] and [SEP].
        add_bos, add_eos: Whether the file's metadata ask for *bos* before and *eos* after a text.
            `encode` never appends *eos*, because the model continues a prompt.
        eog: The ids that end a generation, including *eos*.
        control: The ids of markup tokens.
        never_sampled: The ids that must not be sampled, such as padding rows.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        ids: dict[str, int],
        encoder: Encoder,
        *,
        add_bos: bool,
        add_eos: bool,
        strip: bool,
    ) -> None:
        """Set the parts of the tokenizer; use `from_gguf` to build one."""
        self.n_vocab = len(vocabulary.tokens)
        self.bos = vocabulary.roles.get("bos")
        self.eos = vocabulary.roles.get("eos")
        self.add_bos = add_bos
        self.add_eos = add_eos
        self.eog = vocabulary.ends
        self.never_sampled = vocabulary.never
        self.control = vocabulary.control
        self._letters = _letters(vocabulary, ids)
        self._pieces = Pieces(vocabulary)
        self._strip = strip
        self._encoder = encoder
        self._lock = threading.Lock()  # `encode` sets the encoder's encode_special_tokens

    @classmethod
    def from_gguf(cls, metadata: Metadata) -> Self:
        """Build the tokenizer of a GGUF file.

        Raises:
            ModelFormatError: The metadata are incomplete or inconsistent, or npurt does not support
                the tokenizer or pre-tokenizer.
        """
        tokens, ids = distinct(token_texts(metadata))
        vocabulary = Vocabulary.read(metadata, tokens)
        _leave_out_surrogates(ids)
        markup = _markup(vocabulary, ids)
        if vocabulary.model == SENTENCEPIECE:
            prefix = optional(metadata, "tokenizer.ggml.add_space_prefix", bool, True)
            encoder = _sentencepiece(vocabulary, metadata, ids, prefix=prefix)
            add_bos = True
        elif vocabulary.model == WORDPIECE:
            prefix, add_bos = True, True
            encoder = _wordpiece(vocabulary, metadata, ids)
        else:
            prefix = False
            chosen = rule(require(metadata, "tokenizer.ggml.pre", str))
            encoder = _byte_pairs(vocabulary, metadata, ids, chosen)
            add_bos = chosen.add_bos
        encoder.add_tokens(markup)
        wordpiece = vocabulary.model == WORDPIECE
        if not wordpiece:  # WordPiece always adds BOS and EOS, as in llama.cpp
            add_bos = optional(metadata, "tokenizer.ggml.add_bos_token", bool, add_bos)
        if add_bos and "bos" not in vocabulary.roles:
            raise ModelFormatError(
                "the file requires a BOS token but does not specify its id", remedy=CONVERT_AGAIN
            )
        add_eos = wordpiece or optional(metadata, "tokenizer.ggml.add_eos_token", bool, False)
        return cls(vocabulary, ids, encoder, add_bos=add_bos, add_eos=add_eos, strip=prefix)

    def encode(self, text: str, *, add_bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the ids of *text*.

        Args:
            text: Any text.
            add_bos: Begin with `bos`; None uses the value in the file's metadata.  Use False for
                the output of a chat template, which contains the BOS token.
            special: Encode the text of a control token as this token.  Use False for untrusted
                text: markup in the text is then encoded as plain text.

        Raises:
            LayoutError: *text* is not a str, is longer than `MAX_TEXT`, or has a lone surrogate,
                which UTF-8 cannot encode.
            SettingError: *add_bos* is True, and the model has no BOS token.
        """
        if not isinstance(text, str):
            raise LayoutError(
                f"text must be a str, not {type(text).__name__}",
                remedy="decode bytes first: data.decode()",
            )
        head = self._head(self.add_bos if add_bos is None else add_bos)
        if len(text) > MAX_TEXT:
            raise LayoutError(
                f"the text has {len(text)} characters, above {MAX_TEXT}",
                remedy="encode the text in parts; it exceeds the context of every model",
            )
        lone = SURROGATE.search(text)
        if lone:
            raise LayoutError(
                f"character {lone.start()} of the text is a lone surrogate",
                remedy="replace surrogates with text.encode('utf-8', 'replace').decode()",
            )
        with self._lock:
            self._encoder.encode_special_tokens = not special
            if len(text) < LONG_TEXT:
                ids = self._encoder.encode(text, add_special_tokens=False).ids
            else:  # this method lets other threads run; it starts threads of its own
                ids = self._encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not special and not self._letters.keys().isdisjoint(ids):
            ids = [letter for i in ids for letter in self._letters.get(i, (i,))]
        return head + ids

    def decode(self, tokens: Iterable[int], *, special: bool = True) -> str:
        """Return the text of *tokens*, with U+FFFD for bytes that are not UTF-8.

        With *special* False, control tokens are omitted.  Raises LayoutError if an id is out of
        range.
        """
        return self.decode_bytes(tokens, special=special).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Iterable[int], *, special: bool = True) -> bytes:
        """Return the bytes of *tokens*; see `decode`."""
        return join(self._pieces, tokens, hidden=self._hidden(special), strip=self._strip)

    def stream(self, *, special: bool = True, continued: bool = False) -> Detokenizer:
        """Return a stream that decodes tokens one by one, with the same text as `decode`.

        With *continued* True, the tokens continue an earlier text, so the first token of a
        SentencePiece model keeps its leading space.
        """
        strip = self._strip and not continued
        return Detokenizer(self._pieces, hidden=self._hidden(special), strip=strip)

    def piece(self, token: int) -> bytes:
        """Return the bytes of *token*; raise LayoutError if the id is out of range."""
        return self._pieces[token]

    def _hidden(self, special: bool) -> frozenset[int]:
        return frozenset() if special else self.control

    def _head(self, add_bos: bool) -> list[int]:
        if not add_bos:
            return []
        if self.bos is None:
            raise SettingError("the model has no BOS token", remedy="pass add_bos=False")
        return [self.bos]


def _byte_pairs(
    vocabulary: Vocabulary, metadata: Metadata, ids: dict[str, int], chosen: Rule
) -> Encoder:
    """Return an encoder that merges bytes in the order of the file's merges.

    Raises:
        ModelFormatError: A part or the result of a merge is no token.
    """
    texts = strings(metadata, "tokenizer.ggml.merges")
    merges = _pairs(texts, ids)
    # The library also looks up the results of merges, but panics if a result is longer than every
    # token.
    longest = vocabulary.tokens.longest if len(ids) == len(vocabulary.tokens) else 0
    if texts.longest > longest + len(" "):
        _require_tokens(merges, ids)
    try:
        model = models.BPE(ids, merges, ignore_merges=chosen.ignore_merges)
    except Exception as error:  # the library raises plain Exception
        _require_tokens(merges, ids)
        raise ModelFormatError(
            f"a part of a merge is no token: {error}", remedy=CONVERT_AGAIN
        ) from error
    encoder = Encoder(model)
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in chosen.patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return encoder


def _require_tokens(merges: list[tuple[str, str]], ids: dict[str, int]) -> None:
    """Raise ModelFormatError if the result of one of *merges* is no token."""
    wrong = next((merge for merge in merges if "".join(merge) not in ids), None)
    if wrong:
        raise ModelFormatError(
            f"the result of the merge {' '.join(wrong)!r} is no token", remedy=CONVERT_AGAIN
        )


def _pairs(given: StringArray, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the left and the right side of each merge."""
    _require_merges(len(given), ids)
    if given.nbytes > MAX_MERGE_TEXT:
        raise ModelFormatError(
            f"the merges have {given.nbytes} bytes, above {MAX_MERGE_TEXT}", remedy=CONVERT_AGAIN
        )
    shared = dict(zip(ids, ids, strict=True)).get  # reuse one str object for equal texts
    return [
        (shared(left, left), shared(right, right))
        for left, _, right in map(str.partition, given, repeat(" "))
    ]


def _require_merges(count: int, ids: dict[str, int]) -> None:
    """Raise an error if *count* merges are too many for the number of tokens."""
    maximum = min(MAX_MERGES, MERGES_PER_TOKEN * len(ids))
    if count > maximum:
        raise ModelFormatError(
            f"{len(ids)} tokens have {count} merges or more, above {maximum}",
            remedy=CONVERT_AGAIN,
        )


def _sentencepiece(
    vocabulary: Vocabulary, metadata: Metadata, ids: dict[str, int], *, prefix: bool
) -> Encoder:
    """Return an encoder that merges characters into tokens, highest score first."""
    unknown = vocabulary.tokens[vocabulary.roles["unknown"]]
    if unknown not in ids:
        raise ModelFormatError("the unknown token is not UTF-8", remedy=CONVERT_AGAIN)
    model = models.BPE(
        ids,
        _merges(vocabulary, metadata, ids),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    encoder = Encoder(model)
    spaces = normalizers.Replace(" ", SPACE)
    before = [normalizers.Prepend(SPACE)] if prefix else []
    encoder.normalizer = normalizers.Sequence([*before, spaces])
    return encoder


def _wordpiece(vocabulary: Vocabulary, metadata: Metadata, ids: dict[str, int]) -> Encoder:
    """Return an encoder that splits each word greedily into the longest matching tokens.

    Source of the keys and the defaults: llama.cpp src/llama-vocab.cpp (normalizer_options), MIT.
    """
    if not {"bos", "eos", "unknown"} <= vocabulary.roles.keys():
        raise ModelFormatError("the file names no [CLS], [SEP] or [UNK]", remedy=CONVERT_AGAIN)
    unknown = vocabulary.tokens[vocabulary.roles["unknown"]]
    words = {_as_word(text, markup=i in vocabulary.control): i for text, i in ids.items()}
    if unknown not in words:
        raise ModelFormatError("the unknown token is not markup", remedy=CONVERT_AGAIN)
    encoder = Encoder(models.WordPiece(words, unk_token=unknown, max_input_chars_per_word=100))
    prefix = "tokenizer.ggml.normalizer"
    lowercase = optional(metadata, f"{prefix}.lowercase", bool, True)
    strip = optional(metadata, f"{prefix}.strip_accents", bool, lowercase)
    encoder.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip)
    encoder.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return encoder


def _as_word(text: str, *, markup: bool) -> str:
    """Return a token in the library's form: with the prefix ## unless it begins a word."""
    if markup:
        return text
    return text.removeprefix(SPACE) if text.startswith(SPACE) else f"##{text}"


def _merges(
    vocabulary: Vocabulary, metadata: Metadata, ids: dict[str, int]
) -> list[tuple[str, str]]:
    """Return all pairs of tokens that merge into a token, by score, then the longest left side.

    A SentencePiece file has scores and no merges.  The ids equal llama.cpp's if the scores of
    tokens differ, as in a trained model; among equal scores llama.cpp merges the leftmost pair in
    the text.  The result of a merge is never a markup token.
    """
    given = per_token(metadata, "scores", INTEGERS + FLOATS, len(vocabulary.tokens))
    if not all(map(math.isfinite, given)):
        raise ModelFormatError("a token's score is not finite", remedy=CONVERT_AGAIN)
    shared = dict(zip(ids, ids, strict=True)).get  # reuse one str object for equal texts
    merges: list[tuple[str, str]] = []
    by_score = sorted(ids, key=lambda text: -given[ids[text]])
    for _, texts in groupby(by_score, lambda text: given[ids[text]]):
        found: list[tuple[str, str]] = []
        for text in texts:
            token = ids[text]
            if len(text) > MAX_PIECE:
                raise ModelFormatError(
                    f"token {token} has {len(text)} characters, above {MAX_PIECE}",
                    remedy=CONVERT_AGAIN,
                )
            if vocabulary.kinds[token] == TokenType.BYTE or token in vocabulary.control:
                continue
            for cut in range(1, len(text)):
                left, right = shared(text[:cut]), shared(text[cut:])
                if left is not None and right is not None:
                    found.append((left, right))
            _require_merges(len(merges) + len(found), ids)
        merges += sorted(found, key=lambda merge: (-len(merge[0]), -len(merge[1])))
    return merges


def _letters(vocabulary: Vocabulary, ids: dict[str, int]) -> dict[int, list[int]]:
    """Return markup token -> the ids of its characters as plain text.

    If a file has merges whose result is a markup token, `encode` replaces this token by these ids.
    """
    markup = {i: vocabulary.tokens[i] for i in vocabulary.control if vocabulary.model == BPE}
    letters = {c: ids[c] for text in markup.values() for c in text if c in ids}
    letters = {c: i for c, i in letters.items() if i not in vocabulary.control}
    return {
        i: [letters[c] for c in text if c in letters] for i, text in markup.items() if len(text) > 1
    }


def _leave_out_surrogates(ids: dict[str, int]) -> None:
    """Remove tokens that are not UTF-8 from *ids*, because no text encodes to them."""
    if SURROGATE.search("".join(ids)):
        for text in [*filter(SURROGATE.search, ids)]:
            del ids[text]


def _markup(vocabulary: Vocabulary, ids: dict[str, int]) -> list[AddedToken]:
    """Return the control and user-defined tokens, which the encoder matches before it merges."""
    user = tokens_of(vocabulary.kinds, TokenType.USER_DEFINED)
    texts = ((vocabulary.tokens[i], i in vocabulary.control) for i in {*vocabulary.control, *user})
    known = [(text, special) for text, special in texts if text in ids]
    nbytes = sum(len(text.encode()) for text, _ in known)
    if len(known) > MAX_MARKUP or nbytes > MAX_MARKUP_TEXT:
        raise ModelFormatError(
            f"{len(known)} markup tokens have {nbytes} bytes; npurt accepts at most {MAX_MARKUP} "
            f"with {MAX_MARKUP_TEXT} bytes",
            remedy=CONVERT_AGAIN,
        )
    return [AddedToken(text, special=special, normalized=False) for text, special in known]
