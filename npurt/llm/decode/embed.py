"""Compute embeddings of texts: hidden states after the output norm, pooled in float64."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from npurt.device.device import F32
from npurt.errors import ContextFull, LayoutError, ModelFormatError, brief
from npurt.graph.interpreter import Interpreter
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.llm.arch.decoder import output_norm
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.metadata import CONVERT_AGAIN
from npurt.llm.file.pooling import DENSE, OUTPUT, Pooling, has_classifier, pooling_of
from npurt.llm.session.context import Context
from npurt.llm.session.lock import locked
from npurt.llm.text.pairs import Segmented, cut, pair, whole
from npurt.runtime.open.arguments import flag, listed

F64 = npt.NDArray[np.float64]
Text = str | Sequence[int]  # a str, or all its token ids with BOS and EOS
LAST_OF_RERANKERS = ("qwen3",)  # architectures whose classifier reads the last token, not the first
SHARES = ("qwen3",)  # architectures whose classifier applies a softmax to its outputs


class TextEmbedding(NamedTuple):
    """The embedding of one text.

    Attributes:
        values: ``[D]``; ``[T, D]`` without pooling; the scores of a reranker.
        tokens: The number of tokens of the text after truncation.
    """

    values: F32
    tokens: int


class Embedder:
    """Computes embeddings with a model, and restores its context afterwards.

    Each text begins at position 0, and its embedding does not depend on other texts.  A decoder
    runs texts one after another; an encoder runs several texts together, up to the row limit of a
    run.

    Args:
        context: The context in which a decoder evaluates texts.
    """

    def __init__(self, context: Context) -> None:
        self.lock = context.lock
        self._context = context
        self._model = context.model

    @locked
    def each(
        self,
        texts: Sequence[Text],
        normalize: bool = True,
        *,
        pooling: str | None = None,
        truncate: bool = False,
    ) -> list[TextEmbedding]:
        """Return the embedding of each text and the number of its tokens.

        No text is evaluated if this raises an error about one of them.

        Args:
            normalize: Scale each embedding to length 1; scores of a reranker are not scaled.
            pooling: The name of a `Pooling`; None uses the pooling in the file's metadata,
                otherwise the mean.
            truncate: Cut texts that are longer than the context.

        Raises:
            ContextFull: A text has more tokens than the context has positions.
            LayoutError: A text is neither a str nor token ids, or has no tokens.
            ModelFormatError: The file has no classifier, which pooling by rank needs.
            SettingError: *pooling* is not the name of a pooling.
        """
        self._model.require_open()
        normalize, truncate = flag("normalize", normalize), flag("truncate", truncate)
        texts = _texts(texts)
        chosen = pooling_of(pooling, self._model.file.metadata)
        if chosen is Pooling.RANK:
            self._require_classifier()
        ids = [self._ids(index, text, truncate=truncate) for index, text in enumerate(texts)]
        with self._kept():
            return [
                TextEmbedding(self._pooled(hidden, chosen, normalize), len(hidden))
                for hidden in self._each_hidden([(tokens, None) for tokens in ids])
            ]

    @locked
    def rerank(self, query: str, documents: Sequence[str]) -> F32:
        """Return the relevance of each document to *query*: see `Llama.rerank`."""
        self._model.require_open()
        documents = listed("documents", documents, "a list of texts")
        self._require_classifier()
        tokenizer, metadata = self._model.tokenizer, self._model.file.metadata
        return self.scores([pair(tokenizer, metadata, query, document) for document in documents])

    @locked
    def scores(self, pairs: Sequence[Segmented]) -> F32:
        """Return the score of each pair of texts, whose tokens `text.pairs` makes, float32 ``[N]``.

        Raises:
            ContextFull: A pair has more tokens than the context has positions; no pair is
                evaluated.
            ModelFormatError: The file has no classifier.
        """
        self._model.require_open()
        self._require_classifier()
        for index, (ids, _) in enumerate(pairs):
            self._fitting(f"the query with document {index}", ids, truncate=False)
        with self._kept():
            states = self._each_hidden(pairs)
            scores = [self._pooled(each, Pooling.RANK, normalize=False)[0] for each in states]
        return np.array(scores, np.float32)

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of *text*, with BOS and EOS if the file requires them.

        Control tokens that are spelt out in the text are encoded as plain text.
        """
        return whole(self._model.tokenizer, text)

    def _ids(self, index: int, text: Text, *, truncate: bool) -> list[int]:
        """Return the token ids of a text, checked and truncated by `_fitting`."""
        ids = self.tokens(text) if isinstance(text, str) else self._model.valid(text)
        return self._fitting(f"text {index}", ids, truncate=truncate)

    def _fitting(self, what: str, ids: list[int], *, truncate: bool) -> list[int]:
        """Return *ids*; with *truncate*, cut to the length of the context.  EOS is not cut off."""
        n_ctx = self._context.n_ctx
        if not ids:
            raise LayoutError(f"{what} has no token to embed", remedy="leave empty texts out")
        if len(ids) <= n_ctx:
            return ids
        if not truncate:
            raise ContextFull(
                f"{what} has {len(ids)} tokens, and the context {n_ctx} positions",
                remedy="raise n_ctx (-c), divide the text, or cut it with truncate=True",
            )
        return cut(self._model.tokenizer, ids, n_ctx)

    # --- Hidden states --------------------------------------------------------------------------

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Restore the context afterwards, so that an open generation can continue."""
        state = self._context.state
        held = self._context.snapshot() if state.length else None
        changes = state.changes
        try:
            yield
        finally:
            self._context.reset()
            if held is not None:
                self._context.restore(held)
            state.changes = changes

    def _each_hidden(self, texts: Sequence[Segmented]) -> Iterator[F64]:
        """Yield the hidden states of each text after the output norm, ``[T, D]``."""
        if self._model.encoder is None:
            yield from (self._hidden(ids) for ids, _ in texts)
            return
        for together in self._runs(texts):
            for hidden in self._model.encoder.run_together(together):
                yield hidden.astype(np.float64)

    def _runs(self, texts: Sequence[Segmented]) -> Iterator[list[Segmented]]:
        """Yield lists of texts, each for one run of an encoder.

        A run has one text on devices such as numpy, where the number of rows in a run changes the
        result of each row.
        """
        maximum = self._model.setup.limits.rows if self._model.devices.cpu else 0
        run: list[Segmented] = []
        rows = 0
        for text in texts:
            if run and rows + len(text[0]) > maximum:
                yield run
                run, rows = [], 0
            run.append(text)
            rows += len(text[0])
        if run:
            yield run

    def _hidden(self, ids: list[int]) -> F64:
        """Return the hidden states of *ids* after the output norm of a decoder, ``[T, D]``."""
        self._context.reset()
        stream = self._context.streams(ids).astype(np.float64)
        setup = self._model.setup
        graph = output_norm(setup.graph)
        load = FileWeights(self._model.file, setup.graph).values
        (given,), (wanted,) = graph.given, graph.wanted
        norm = Interpreter(graph, load, np.float64)
        made: F64 = norm.run({given: stream}, Rows.of(len(ids)), States(graph))[wanted]
        return made

    # --- Pooling --------------------------------------------------------------------------------

    def _pooled(self, hidden: F64, pooling: Pooling, normalize: bool) -> F32:
        """Return the result of *pooling* for the hidden states of a text, ``[T, D]``."""
        if pooling is Pooling.RANK:
            last = self._model.config.architecture in LAST_OF_RERANKERS
            return self._scores(hidden[-1 if last else 0]).astype(np.float32)
        if pooling is Pooling.MEAN:
            hidden = hidden.mean(axis=0)
        elif pooling is Pooling.CLS:
            hidden = hidden[0]
        elif pooling is Pooling.LAST:
            hidden = hidden[-1]
        return (unit(hidden) if normalize else hidden).astype(np.float32)

    def _require_classifier(self) -> None:
        if not has_classifier(self._model.file.tensors):
            raise ModelFormatError(
                f"the file has neither {DENSE}.weight nor {OUTPUT}.weight, so it is no reranker",
                remedy="use another pooling, or the file of a reranker",
            )

    def _scores(self, x: F64) -> F64:
        """Return the classifier's scores for the hidden state of one token."""
        x = np.tanh(self._linear(DENSE, x)) if f"{DENSE}.weight" in self._model.file else x
        x = self._linear(OUTPUT, x) if f"{OUTPUT}.weight" in self._model.file else x
        if self._model.config.architecture in SHARES:
            powers = np.exp(x - x.max())
            return np.asarray(powers / powers.sum())
        return x

    def _linear(self, name: str, x: F64) -> F64:
        file = self._model.file
        weight: npt.NDArray[Any] = file[f"{name}.weight"].dequantize()
        weight = weight.reshape(-1, weight.shape[-1]).astype(np.float64)
        if weight.shape[1] != len(x):
            raise ModelFormatError(
                f"{name}.weight has {weight.shape[1]} columns for a state of {len(x)} values",
                remedy=CONVERT_AGAIN,
            )
        y = weight @ x
        bias = f"{name}.bias"
        return np.asarray(y + file[bias].dequantize() if bias in file else y)


def as_openai(made: Sequence[TextEmbedding], model: str) -> dict[str, Any]:
    """Return embeddings as a response of OpenAI's API; *model* is the value of its field model."""
    tokens = sum(embedding.tokens for embedding in made)
    data = [
        {"object": "embedding", "index": index, "embedding": embedding.values.tolist()}
        for index, embedding in enumerate(made)
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def unit(x: F64) -> F64:
    """Return *x* with each vector along the last axis scaled to length 1, except zero vectors."""
    length = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.asarray(x / np.where(length > 0, length, 1))


def _texts(given: Any) -> list[Text]:
    """Return the list of texts *given*.

    Raises:
        LayoutError: *given* is a str, bytes, set or mapping, or is not iterable.
    """
    unordered = isinstance(given, str | bytes | bytearray | Set | Mapping)
    try:
        if not unordered:
            return list(given)
    except TypeError:
        pass
    raise LayoutError(
        f"the texts are {brief(given)}", remedy="pass a text, token ids, or a list of these"
    )
