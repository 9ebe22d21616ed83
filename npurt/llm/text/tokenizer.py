"""Convert text to token ids and back, with the tokenizer that a GGUF file describes.

HuggingFace tokenizers encodes, with settings from the file; `detokenize` decodes.  Ids equal
llama.cpp's, with two differences.  A token of kind normal is text even if its text is ``</s>``, as
in Qwen's vocabulary; llama.cpp takes it for the end of a generation.  And WordPiece gives the
unknown token for words of more than 100 characters, as BERT's own tokenizer does.
Text is not normalised (no NFC), as in llama.cpp; but for WordPiece, as BERT does it.

Building a tokenizer takes some 300 bytes a token, 250 a merge and 100 a byte of markup: 80 MB for a
vocabulary of 150,000, and little more than 1 GB for the largest that the limits below allow.
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
from npurt.llm.text.detokenize import SPACE, Pieces, Stream, join
from npurt.llm.text.pretokenize import Rule, rule
from npurt.llm.text.vocabulary import (
    BPE,
    SENTENCEPIECE,
    WORDPIECE,
    Kind,
    Vocabulary,
    distinct,
    per_token,
    token_texts,
    tokens_of,
)

SURROGATE = re.compile("[\ud800-\udfff]")

# No known tokenizer exceeds these.  gpt-oss has 446,189 merges for 201,088 tokens; Llama 3 and GLM
# have as many for each token.  Llasa, a speech model, has 65,536 tokens that may be markup, with
# less than 1 MB of text.
MERGES_PER_TOKEN = 8
MAX_MERGES = 1 << 21
MAX_MERGE_TEXT = 1 << 26  # bytes
MAX_MARKUP = 1 << 17
MAX_MARKUP_TEXT = 1 << 21  # bytes
MAX_TEXT = 1 << 22  # characters, about as many as the longest contexts, of a million tokens, hold
MAX_PIECE = 128  # characters of a SentencePiece token: every split in two is looked up


class Tokenizer:
    """One model's tokenizer.  May be used from several threads.

    Attributes:
        n_vocab: Number of ids.
        bos, eos: Ids, or None if the file names none.
        add_bos, add_eos: Whether the file wants a text to begin with *bos* and end with *eos*,
            which are [CLS] and [SEP] of WordPiece.
            `encode` never appends *eos*, because a prompt is continued.
        eog: Ids that end a generation: *eos*, and every other such token of the vocabulary.
        control: Ids that are markup, not text.
        never_sampled: Ids that must not be sampled, such as padding rows.
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
        """Use `from_gguf`."""
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
        self._lock = threading.Lock()  # the encoder stores `special` as its state

    @classmethod
    def from_gguf(cls, metadata: Metadata) -> Self:
        """Build the tokenizer of a GGUF file.

        Raises:
            ModelFormatError: The metadata is incomplete or contradicts itself, or its tokenizer or
                pre-tokenizer is not one npurt knows.
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
        if not wordpiece:  # llama.cpp does not ask the file either
            add_bos = optional(metadata, "tokenizer.ggml.add_bos_token", bool, add_bos)
        if add_bos and "bos" not in vocabulary.roles:
            raise ModelFormatError(
                "the file wants a BOS token but names none", remedy=CONVERT_AGAIN
            )
        add_eos = wordpiece or optional(metadata, "tokenizer.ggml.add_eos_token", bool, False)
        return cls(vocabulary, ids, encoder, add_bos=add_bos, add_eos=add_eos, strip=prefix)

    def encode(self, text: str, *, add_bos: bool | None = None, special: bool = True) -> list[int]:
        """Return the ids of *text*.

        Args:
            text: Any text.
            add_bos: Begin with `bos`; None: as the file says.  Use False for the output of a chat
                template, which writes its own.
            special: Encode control tokens that are spelt out in *text* as such.  Use False for text
                from a stranger: they are then plain text.

        Raises:
            LayoutError: *text* is not a str, is longer than `MAX_TEXT`, or has a lone surrogate,
                which UTF-8 cannot encode.
            SettingError: *add_bos*, and the model has no BOS token.
        """
        if not isinstance(text, str):
            raise LayoutError(
                f"a text is a str, not {type(text).__name__}",
                remedy="decode bytes first: data.decode()",
            )
        head = self._head(self.add_bos if add_bos is None else add_bos)
        if len(text) > MAX_TEXT:
            raise LayoutError(
                f"the text has {len(text)} characters, above {MAX_TEXT}",
                remedy="encode it in parts; no model's context holds it",
            )
        lone = SURROGATE.search(text)
        if lone:
            raise LayoutError(
                f"character {lone.start()} of the text is a lone surrogate",
                remedy="clean it with text.encode('utf-8', 'replace').decode()",
            )
        with self._lock:
            self._encoder.encode_special_tokens = not special
            ids = self._encoder.encode(text, add_special_tokens=False).ids
        if not special and not self._letters.keys().isdisjoint(ids):
            ids = [letter for i in ids for letter in self._letters.get(i, (i,))]
        return head + ids

    def decode(self, tokens: Iterable[int], *, special: bool = True) -> str:
        """Return the text of *tokens*, with U+FFFD for bytes that are not UTF-8.

        *special* False leaves control tokens out.  LayoutError if an id is out of range.
        """
        return self.decode_bytes(tokens, special=special).decode("utf-8", "replace")

    def decode_bytes(self, tokens: Iterable[int], *, special: bool = True) -> bytes:
        """Return the bytes of *tokens*; see `decode`."""
        return join(self._pieces, tokens, hidden=self._hidden(special), strip=self._strip)

    def stream(self, *, special: bool = True, continued: bool = False) -> Stream:
        """Return a stream that decodes tokens one by one, to the text that `decode` returns.

        *continued* says that the text began before: the first token of a SentencePiece model then
        keeps its space.
        """
        strip = self._strip and not continued
        return Stream(self._pieces, hidden=self._hidden(special), strip=strip)

    def piece(self, token: int) -> bytes:
        """Return the bytes of *token*.  LayoutError if it is out of range."""
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
        ModelFormatError: A merge is not of tokens, or makes none.
    """
    texts = strings(metadata, "tokenizer.ggml.merges")
    merges = _pairs(texts, ids)
    # The library looks up what is merged, too, but panics where that is longer than every token.
    longest = vocabulary.tokens.longest if len(ids) == len(vocabulary.tokens) else 0
    if texts.longest > longest + len(" "):
        _require_tokens(merges, ids)
    try:
        model = models.BPE(ids, merges, ignore_merges=chosen.ignore_merges)
    except Exception as error:  # the library has no type of its own
        _require_tokens(merges, ids)
        raise ModelFormatError(
            f"a merge is not of tokens: {error}", remedy=CONVERT_AGAIN
        ) from error
    encoder = Encoder(model)
    encoder.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in chosen.patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return encoder


def _require_tokens(merges: list[tuple[str, str]], ids: dict[str, int]) -> None:
    """Raise ModelFormatError if one of *merges* makes no token."""
    wrong = next((merge for merge in merges if "".join(merge) not in ids), None)
    if wrong:
        raise ModelFormatError(
            f"the merge {' '.join(wrong)!r} makes no token", remedy=CONVERT_AGAIN
        )


def _pairs(given: StringArray, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the two sides of each merge."""
    _require_merges(len(given), ids)
    if given.nbytes > MAX_MERGE_TEXT:
        raise ModelFormatError(
            f"the merges have {given.nbytes} bytes, above {MAX_MERGE_TEXT}", remedy=CONVERT_AGAIN
        )
    own = dict(zip(ids, ids, strict=True)).get  # a text is one object, however many merges have it
    return [
        (own(left, left), own(right, right))
        for left, _, right in map(str.partition, given, repeat(" "))
    ]


def _require_merges(count: int, ids: dict[str, int]) -> None:
    """Refuse more merges than a tokenizer of so many tokens can have."""
    most = min(MAX_MERGES, MERGES_PER_TOKEN * len(ids))
    if count > most:
        raise ModelFormatError(
            f"there are {count} merges or more for {len(ids)} tokens, above {most}",
            remedy=CONVERT_AGAIN,
        )


def _sentencepiece(
    vocabulary: Vocabulary, metadata: Metadata, ids: dict[str, int], *, prefix: bool
) -> Encoder:
    """Return an encoder that merges characters to the tokens of the highest score."""
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
    """Return an encoder that takes the longest token that a word, or the rest of one, begins with.

    Source of the keys and of the defaults: llama.cpp src/llama-vocab.cpp (normalizer_options), MIT.
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
    """Return a token as WordPiece writes it, with ## before the rest of a word."""
    if markup:
        return text
    return text.removeprefix(SPACE) if text.startswith(SPACE) else f"##{text}"


def _merges(
    vocabulary: Vocabulary, metadata: Metadata, ids: dict[str, int]
) -> list[tuple[str, str]]:
    """Return all pairs of tokens that make a token, by score, then the longest left side first.

    A SentencePiece file has scores and no merges.  Ids equal llama.cpp's if the scores of tokens
    differ, as in a trained model; with equal scores llama.cpp takes the leftmost pair in the text.
    No merge makes markup from plain text.
    """
    given = per_token(metadata, "scores", INTEGERS + FLOATS, len(vocabulary.tokens))
    if not all(map(math.isfinite, given)):
        raise ModelFormatError("a token's score is not finite", remedy=CONVERT_AGAIN)
    own = dict(zip(ids, ids, strict=True)).get  # a text is one object, however many merges have it
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
            if vocabulary.kinds[token] == Kind.BYTE or token in vocabulary.control:
                continue
            for cut in range(1, len(text)):
                left, right = own(text[:cut]), own(text[cut:])
                if left is not None and right is not None:
                    found.append((left, right))
            _require_merges(len(merges) + len(found), ids)
        merges += sorted(found, key=lambda merge: (-len(merge[0]), -len(merge[1])))
    return merges


def _letters(vocabulary: Vocabulary, ids: dict[str, int]) -> dict[int, list[int]]:
    """Return the letters of each markup token, as ids of text.

    A file may have merges that make markup from text.  `encode` then replaces it by its letters.
    """
    markup = {i: vocabulary.tokens[i] for i in vocabulary.control if vocabulary.model == BPE}
    letters = {c: ids[c] for text in markup.values() for c in text if c in ids}
    letters = {c: i for c, i in letters.items() if i not in vocabulary.control}
    return {
        i: [letters[c] for c in text if c in letters] for i, text in markup.items() if len(text) > 1
    }


def _leave_out_surrogates(ids: dict[str, int]) -> None:
    """Leave texts that are not UTF-8 out of *ids*: no text encodes to them."""
    if SURROGATE.search("".join(ids)):
        for text in [*filter(SURROGATE.search, ids)]:
            del ids[text]


def _markup(vocabulary: Vocabulary, ids: dict[str, int]) -> list[AddedToken]:
    """Return control and user-defined tokens, which the encoder finds in text first."""
    user = tokens_of(vocabulary.kinds, Kind.USER_DEFINED)
    texts = ((vocabulary.tokens[i], i in vocabulary.control) for i in {*vocabulary.control, *user})
    known = [(text, special) for text, special in texts if text in ids]
    nbytes = sum(len(text.encode()) for text, _ in known)
    if len(known) > MAX_MARKUP or nbytes > MAX_MARKUP_TEXT:
        raise ModelFormatError(
            f"{len(known)} tokens of {nbytes} bytes are markup; npurt takes {MAX_MARKUP} of "
            f"{MAX_MARKUP_TEXT} bytes",
            remedy=CONVERT_AGAIN,
        )
    return [AddedToken(text, special=special, normalized=False) for text, special in known]
