"""The base of `Llama`: load a model, evaluate tokens, keep and restore the state."""

import contextlib
import functools
import hashlib
import operator
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from npurt import moved
from npurt.cpu.device import CpuDevice
from npurt.device import F32, Device, Packed
from npurt.errors import LayoutError, SettingError, UnsupportedOp
from npurt.llm.arch.architecture import EMBEDDING
from npurt.llm.arch.decoder import Decoder, output, residual
from npurt.llm.arch.head import Head
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.adapter import Adapter
from npurt.llm.file.config import Config, require_context
from npurt.llm.file.gguf import GGUF
from npurt.llm.file.metadata import Metadata
from npurt.llm.session.lock import Lock, locked
from npurt.llm.session.progress import Progress
from npurt.llm.state import state_file
from npurt.llm.state.hidden_states import HiddenStates
from npurt.llm.state.state import Snapshot, State, require_positions
from npurt.llm.text.tokenizer import Tokenizer
from npurt.quant.tensor import QTensor
from npurt.runtime.execute.executor import Executor, runs_graphs
from npurt.runtime.execute.offload import Offload
from npurt.runtime.execute.placement import Placed
from npurt.runtime.open.arguments import integer
from npurt.runtime.report.ledger import Ledger, Row
from npurt.segment import Compiler, Limits
from npurt.verify import Sampler as Checks

USUAL_CONTEXT = 4096  # the most positions by default
SAMPLE = 512  # bytes of each tensor that identify a model


def positions(config: Config, n_ctx: int | None) -> int:
    """Return how many positions *n_ctx* means: None the usual number, 0 all of the training's."""
    return n_ctx or min(config.n_context, USUAL_CONTEXT if n_ctx is None else config.n_context)


class Context:
    """A model and its context.  `Llama` sets the attributes."""

    path: Path
    metadata: Metadata
    tokenizer: Tokenizer
    n_batch: int
    context_shift: bool
    lock: Lock
    _file: GGUF
    _adapters: Sequence[Adapter]
    _device: Device
    _cpu: CpuDevice  # of a device that multiplies for it, or is it
    _other: Compiler  # runs what the device cannot
    _host: Offload | None  # None of a device that runs graphs
    _state: State
    _decoder: Decoder
    _ledger: Ledger
    _checks: Checks
    _progress: bool
    _closed: bool
    _opened: contextlib.ExitStack

    # --- Loading --------------------------------------------------------------------------------

    def _open_model(self, path: str | os.PathLike[str], n_ctx: int | None, kv_type: str) -> None:
        self._file = self._opened.enter_context(GGUF(path))
        self.path = self._file.path
        self.metadata = self._file.metadata
        self._description = describe(self._file, self._adapters)
        self.config = self._description.config
        self.n_ctx = positions(self.config, n_ctx)
        self._graph = self._description.graph(self.n_ctx)
        if not self._graph.windows:
            require_context(self.metadata, self.n_ctx)
        require_positions(self.n_ctx, kv_type)
        if self.n_ctx > self.config.n_context:
            warnings.warn(
                f"a context of {self.n_ctx} tokens is more than the {self.config.n_context} that "
                f"{self.path.name} was trained for: text beyond them may make no sense",
                stacklevel=3,
            )
        self._kv_type = kv_type

    def _build(self, captured: Sequence[int] = ()) -> None:
        """Compile the graph: for the device, or for the host and a device that multiplies."""
        config, device = self.config, self._device
        graph = self._description.graph(self.n_ctx, captured) if captured else self._graph
        rows = min(self.n_batch, self.n_ctx)
        self._hidden_states = HiddenStates(captured, rows, config.width) if captured else None
        self._logits = np.empty((1, config.n_vocab), np.float32)
        self._embedding = self._file[EMBEDDING]
        weights = FileWeights(self._file, graph)
        limits = Limits(rows, self.n_ctx, kv_dtype=self._kv_type)
        total = sum(info.nbytes for info in self._file.tensors.values())
        with Progress("load", total, "B", shown=self._progress) as bar:

            def packed(name: str, nbytes: int) -> None:
                weights.release(name)
                bar.add(nbytes)

            if runs_graphs(device):
                self._host, compiler = None, device
            else:
                used = config.experts.top_k / config.experts.count if config.experts else 1.0
                self._host = Offload(device, self._cpu, self._ledger, used=used, packed=packed)
                compiler = self._host
            kept = [residual(graph)]  # captured layers are outputs of the graph
            executor = Executor(
                graph.graph, compiler, self._other, weights, limits, self._ledger, kept,
                self._checks,
            )  # fmt: skip
        self._opened.callback(executor.close)  # before its devices
        self._state = State(config, graph.graph, executor, self.n_ctx, self._kv_type)
        self._decoder = Decoder(graph, executor, rows, self._hidden_states)

    # --- Evaluation -----------------------------------------------------------------------------

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the context."""
        return self._state.length

    @property
    def history(self) -> tuple[int, ...]:
        """The tokens in the context."""
        return tuple(self._state.tokens)

    @locked
    def eval(self, ids: Sequence[int]) -> F32:
        """Append *ids* to the cache; return their logits, float32 ``[len(ids), n_vocab]``.

        Raises:
            ContextFull: The tokens do not fit, and `context_shift` is off; nothing is appended.
            LayoutError: An id is not in the vocabulary; nothing is appended.
        """
        self._require_open()
        ids = self._valid(ids)
        out = np.empty((len(ids), self.config.n_vocab), np.float32)
        self._make_room(len(ids))
        for start in range(0, len(ids), self._decoder.rows):
            part = ids[start : start + self._decoder.rows]
            self._forward(part, 0, out[start : start + len(part)])
        return out

    @locked
    def eval_last(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the logits of the last, ``[n_vocab]``.

        The next call overwrites them.  It is cheaper than `eval`, because the output matrix is
        multiplied by one row only.
        """
        self._append(ids, 1)
        row: F32 = self._logits[0]
        return row

    @locked
    def read(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the last one's residual stream ``[1, D]``, for `head`.

        No logits are computed.
        """
        last = self._append(ids, 0) - 1
        return self._decoder.stream(last)

    def _append(self, ids: Sequence[int], wanted: int) -> int:
        """Append *ids* in batches, with the logits of *wanted* last rows; return the last's size.

        Only the last batch gives logits.
        """
        self._require_open()
        ids = self._valid(ids)
        if not ids:
            raise LayoutError(
                "there is no token to evaluate", remedy="pass a prompt of at least one token"
            )
        self._make_room(len(ids))
        rows = self._decoder.rows
        many = self._progress and len(ids) > rows
        with Progress("prefill", len(ids), "token", shown=many) as bar:
            for start in range(0, len(ids), rows):
                part = ids[start : start + rows]
                last = start + rows >= len(ids)
                self._forward(part, len(part) - (wanted if last else 0), self._logits)
                bar.add(len(part))
        return len(part)

    def reset(self) -> None:
        """Forget everything in the cache."""
        self.rewind(0)

    @locked
    def rewind(self, n_tokens: int) -> None:
        """Keep only the first *n_tokens* tokens of the context.

        Kept tokens beyond `state.reach` are evaluated again.

        Raises:
            LayoutError: *n_tokens* is negative.
        """
        n_tokens = integer("n_tokens", n_tokens)
        if n_tokens < 0:
            raise LayoutError(f"{n_tokens} tokens cannot be kept", remedy="keep 0 or more")
        self._require_open()
        self._state.rewind(n_tokens)
        self._mend()

    @locked
    def rollback(self, n_tokens: int) -> None:
        """Take back the last *n_tokens* tokens of the context: see `rewind`.

        Raises:
            LayoutError: The context has fewer tokens.
        """
        n_tokens = integer("n_tokens", n_tokens)
        if not 0 <= n_tokens <= self.n_tokens:
            raise LayoutError(
                f"{n_tokens} of {self.n_tokens} tokens cannot be taken back",
                remedy="take back 0 up to n_tokens",
            )
        self.rewind(self.n_tokens - n_tokens)

    def _forward(self, ids: list[int], head: int, out: F32) -> None:
        """Append one batch; write the logits of rows from *head* on to *out*."""
        self._require_open()
        self._mend()
        while not self._run(ids, self.n_tokens, head, out):
            self._mend()
        self._state.end(ids)

    def _mend(self) -> None:
        """Evaluate tokens again whose states were lost, or beyond which states went back."""
        state, rows = self._state, self._decoder.rows
        if state.behind is not None:
            state.rewind(state.length)  # to where states can be after an interruption
        while (position := state.behind) is not None:
            part = state.tokens[position : position + rows]
            if self._run(part, position, len(part), self._logits):
                state.catch_up(position + len(part))

    def _run(self, ids: list[int], position: int, head: int, out: F32) -> bool:
        """Run one batch; return False when a device failed: `_mend` has to come first."""
        if self._hidden_states:
            self._hidden_states.begin(position, len(ids))
        if not self._state.begin() or not self._decoder.run(ids, position, head, out):
            self._state.lose()
            return False
        if self._hidden_states:
            self._hidden_states.end(ids)
        return True

    # --- For networks that draft for this one ---------------------------------------------------

    @property
    def file(self) -> GGUF:
        """The file."""
        return self._file

    turn = moved.attribute("lock")
    taps = moved.attribute("hidden_states")

    @property
    def hidden_states(self) -> HiddenStates | None:
        """The captured hidden states; None when no draft network reads them."""
        self._require_open()
        return self._hidden_states

    def account(self, op: str) -> Row:
        """Return the ledger's row of an op that the host computes outside the plan."""
        host = self._cpu.caps.name
        return self._ledger.row(Row(op, "", (), host, host))

    def embed(self, ids: Sequence[Any]) -> F32:
        """Refuse texts, whose embeddings npurt does not have yet; of ids see `token_embeddings`.

        Raises:
            UnsupportedOp: It is a text, or are texts.
        """
        if isinstance(ids, Sequence) and any(isinstance(text, str) for text in (ids, *ids)):
            raise UnsupportedOp(
                "npurt does not have embeddings of texts yet",
                remedy="for the rows of the embedding matrix, use token_embeddings(tokenize(text))",
            )
        moved.warn("Llama.embed(ids)", "Llama.token_embeddings(ids)")
        return self.token_embeddings(ids)

    def token_embeddings(self, ids: Sequence[int]) -> F32:
        """Return the rows of the embedding matrix for *ids*, as the first layer gets them, [T, D].

        Raises:
            LayoutError: An id is not in the vocabulary.
        """
        self._require_open()
        ids = self._valid(ids)
        return embeddings(self._embedding, self.config.conventions.embedding_scale, ids)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices, with the output matrix, without the embedding."""
        return sum(weight.packed.nbytes for weight in self._offload.weights.values())

    def output_matrix(self, columns: int) -> Packed:
        """Return the output matrix ``[V, D]``, of *columns* logits or more: see `Packed.first`."""
        return self._output.first(columns).packed

    def head(
        self, op: str, columns: int, norm: F32 | None = None, eps: float | None = None
    ) -> Head:
        """Return a head that computes *columns* logits or more.

        Args:
            op: The name of the product, for reports.
            norm: Weight of the norm before it, ``[D]``; by default the model's.
            eps: Of that norm; by default the model's.
        """
        config = self.config
        norm = self._offload.vectors["output_norm.weight"] if norm is None else norm
        eps = config.eps if eps is None else eps
        plan, weight = self._offload.plan(self._checks), self._output.first(columns)
        return Head(plan, op, weight, norm, eps, config.conventions, self._decoder.rows)

    @property
    def _output(self) -> Placed:
        return self._offload.weights[output(self._graph).weight.name]

    @property
    def _offload(self) -> Offload:
        self._require_open()
        assert self._host is not None, "a draft for a device that runs graphs"
        return self._host

    # --- State ----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the context."""
        self._require_open()
        return self._state

    @locked
    def snapshot(self) -> Snapshot:
        """Return a copy of the state, for `restore`."""
        self._require_open()
        self._mend()
        return replace(self._state.snapshot(), model=self._identity)

    @locked
    def restore(self, snapshot: Snapshot) -> None:
        """Set the state to *snapshot*.

        A Hexagon computes delta nets in integers.  Their states are rounded to float32 precision
        when they move between a Hexagon and another kind of device, and the report says so.
        Results then differ as those of the two devices do.

        Raises:
            LayoutError: It is no snapshot, is of another model or does not fit the context; nothing
                has changed.
        """
        self._require_open()
        if not isinstance(snapshot, Snapshot):
            raise LayoutError(
                f"{snapshot!r:.40} is no snapshot", remedy="pass what snapshot() gave"
            )
        if snapshot.model != self._identity:
            raise LayoutError(
                f"a snapshot of {len(snapshot.tokens)} tokens does not fit: it is of another model",
                remedy="restore snapshots of the same file, opened with the same kv_type",
            )
        self._take(snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        """Set the state to *snapshot*, and note a rounding."""
        note = "states of delta nets came from another kind of device, and were rounded"
        if not self._state.restore(snapshot) and note not in self._ledger.notes:
            self._ledger.notes.append(note)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write the state to the file *path*, whole or not at all.

        Raises:
            StateFormatError: The file cannot be written.
        """
        state_file.save(self.snapshot(), path)

    @locked
    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Set the state to that in the file *path*, exactly or as `restore` says.

        Raises:
            StateFormatError: The file is damaged, of another model or kv_type, or does not fit the
                context; nothing has changed.
        """
        self._require_open()
        n_vocab = self.config.n_vocab
        self._take(state_file.load(self._state, self._identity, n_vocab, path))

    @functools.cached_property
    def _identity(self) -> bytes:
        """Return 32 bytes that identify the model and the type of its cache.

        The beginning of each tensor represents all of it, because training changes every row.
        """
        digest = hashlib.sha256(repr((self.config, list(self._state.layout(1)))).encode())
        for name, info in sorted(self._file.tensors.items()):
            digest.update(repr((name, info.shape, info.format.name)).encode())
            digest.update(self._file.beginning(name, SAMPLE))
        for adapter in self._adapters:
            digest.update(adapter.digest)
        return digest.digest()

    def _valid(self, ids: Sequence[int]) -> list[int]:
        if isinstance(ids, bytes | bytearray):
            raise LayoutError("token ids are integers, not bytes", remedy="pass a text as a str")
        try:
            tokens = [operator.index(i) for i in ids]
        except TypeError as error:
            raise LayoutError(
                f"token ids are integers: {error}", remedy="pass ids from tokenize() of this model"
            ) from error
        wrong = [i for i in tokens if not 0 <= i < self.config.n_vocab]
        if wrong:
            raise LayoutError(
                f"token id {wrong[0]} is not in the vocabulary of {self.config.n_vocab}",
                remedy="pass ids from tokenize() of this model",
            )
        return tokens

    @property
    def can_shift(self) -> bool:
        """Whether a full context makes room for another token."""
        return self.context_shift and self.n_ctx > 1

    def _make_room(self, count: int) -> None:
        state = self._state
        full = state.length + count > self.n_ctx
        if self.can_shift and full and count <= self.n_ctx // 2:
            keep = 1 if self.tokenizer.add_bos else 0
            self._shift(keep, max(count, (state.length - keep) // 2))
        state.require(count)

    def _shift(self, keep: int, drop: int) -> None:
        """Forget *drop* tokens after the first *keep*."""
        if self._state.shifts:
            self._state.shift(keep, drop)
            return
        rest = self._state.tokens[keep + drop :]  # evaluated again
        self.rewind(keep)
        self.eval_last(rest)

    # --- Closing --------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise SettingError("this model is closed", remedy="open the file again with Llama()")

    def _forget(self) -> None:
        """Release all large objects."""
        del self._decoder, self._host, self._hidden_states, self._embedding, self._logits


def embeddings(table: QTensor, scale: float, ids: Sequence[int]) -> F32:
    """Return rows *ids* of *table* times *scale*, ``[T, D]``."""
    rows = table[np.asarray(ids, np.intp)].dequantize()
    return rows if scale == 1 else rows * np.float32(scale)
