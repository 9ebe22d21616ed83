"""Draft tokens with a smaller model that has the same vocabulary."""

import functools
from collections.abc import Iterator, Sequence

from npurt.errors import ModelFormatError
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.metadata import strings
from npurt.llm.session.context import Context
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.spec.drafter import Drafter, DraftToken, likeliest
from npurt.llm.spec.truncated_head import TruncatedHead

MAY_DIFFER = 128  # largest difference of two padded vocabularies, in rows (llama.cpp's rule)
FEW = 8  # largest number of pending tokens that `draft` evaluates without `prepare`


class Assistant(Drafter):
    """Drafts the most probable tokens of a draft model.

    Args:
        draft: A context of the draft model.
        target: The model that verifies the draft tokens.
        head: The draft model's head, if several sequences share it; None creates one.

    Raises:
        ModelFormatError: The vocabularies differ.
    """

    def __init__(
        self, draft: Context, target: LoadedModel, head: TruncatedHead | None = None
    ) -> None:
        model = draft.model
        require_same_vocabulary(model.file, target.file)
        self.name = f"draft model {model.file.path.name}"
        self._draft = draft
        self._n_vocab = min(model.config.n_vocab, target.config.n_vocab)
        self._head = head or output_head(model)
        spared = model.output_matrix(model.config.n_vocab).nbytes - self._head.nbytes
        self.share = (model.weight_bytes - spared) / target.weight_bytes

    def behind(self, history: Sequence[int]) -> int:
        """Return how many tokens `prepare` must evaluate; 0 if few, or if no draft is possible."""
        count = len(self._ahead(history)) - 1
        return count if count > FEW and len(history) <= self._draft.n_ctx else 0

    def prepare(self, history: Sequence[int], maximum: int) -> None:
        """Evaluate up to *maximum* pending tokens of *history*, but not its last token."""
        ahead = self._ahead(history)[:-1]
        if ahead:
            self._draft.rewind(len(history) - 1 - len(ahead))
            self._draft.read(ahead[:maximum])

    def draft(self, history: Sequence[int], maximum: int) -> Iterator[DraftToken]:
        """Yield up to *maximum* tokens, each the most probable one after the tokens before it."""
        ahead = self._ahead(history)
        if not ahead:
            return
        self._draft.rewind(len(history) - len(ahead))
        head = self._head.fit(history)
        for _ in range(min(maximum, self._draft.n_ctx - len(history) + 1)):
            token = likeliest(head(self._draft.read(ahead))[0, : self._n_vocab])
            yield token
            ahead = [token[0]]

    def _ahead(self, history: Sequence[int]) -> Sequence[int]:
        """Return the tokens of *history* that the draft model has not evaluated.

        The result is empty if one of them is not in the draft model's vocabulary.
        """
        ahead = history[shared(self._draft.state.tokens, history[:-1]) :]
        return ahead if max(ahead) < self._n_vocab else ()

    def forget(self) -> None:
        """Remove all tokens from the draft model's context."""
        self._draft.reset()

    def release(self) -> None:
        """Release the draft model's context."""
        self._draft.release()


def output_head(model: LoadedModel) -> TruncatedHead:
    """Return the truncated output matrix of a draft model."""
    return TruncatedHead(model, functools.partial(model.head, "output"))


def shared(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix of *a* and *b*, by comparing slices, which is fast."""
    a, b = list(a), list(b)
    count, maximum = 0, min(len(a), len(b))
    half = maximum
    while count < maximum:
        if a[count : count + half] == b[count : count + half]:
            count += half
        else:
            maximum = count + half - 1
        half = (maximum - count + 1) // 2
    return count


def require_same_vocabulary(draft: GGUF, target: GGUF) -> None:
    """Check that *draft* and *target* have the same vocabulary, except for padding at the end.

    Raises:
        ModelFormatError: A token id has different texts in the two vocabularies, or the sizes
            differ by more than `MAY_DIFFER`.
    """
    a, b = (strings(file.metadata, "tokenizer.ggml.tokens") for file in (draft, target))
    pairs = enumerate(zip(a, b, strict=False))
    wrong = next((i for i, (x, y) in pairs if x != y), None)
    if abs(len(a) - len(b)) > MAY_DIFFER or wrong is not None:
        where = f"token {wrong} differs: {a[wrong]!r}, {b[wrong]!r}" if wrong is not None else ""
        raise ModelFormatError(
            f"{draft.path.name} cannot draft for {target.path.name}: the vocabularies have "
            f"{len(a)} and {len(b)} tokens; {where}".rstrip("; "),
            remedy="use a smaller model of the same family",
        )
