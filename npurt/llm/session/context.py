"""A context: the tokens of one sequence and their state."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from npurt.device.device import F32
from npurt.errors import LayoutError, NumericsError, brief
from npurt.llm.arch.decoder import Chunk
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.session.lock import locked
from npurt.llm.session.progress import Progress
from npurt.llm.state import state_file
from npurt.llm.state.hidden_states import HiddenStates
from npurt.llm.state.state import Snapshot, State
from npurt.runtime.open.arguments import integer


class Context:
    """The tokens of a sequence that a model has evaluated, and their state.

    A model can have a limited number of contexts: see `Setup.limits`.  `release` frees the sequence
    of this context for another one.

    Args:
        model: The model.
        shift: When the context is full, remove the older half of its tokens.

    Attributes:
        model: As in the arguments.
        shift: As in the arguments; may be changed.
        lock: The model's lock.
        n_ctx: Positions of the context.

    Raises:
        SettingError: The model cannot have another context.
    """

    def __init__(self, model: LoadedModel, *, shift: bool = False) -> None:
        setup = model.setup
        self.model = model
        self.shift = shift
        self.lock = model.lock
        self.n_ctx = model.n_ctx
        self._state = State(
            model.config, setup.graph.graph, model.executor, self.n_ctx, setup.limits.kv_dtype,
            model.allocate(),
        )  # fmt: skip
        rows = setup.limits.rows
        self._hidden_states = (
            HiddenStates(setup.captured, rows, model.config.width) if setup.captured else None
        )
        self._logits: F32 = np.empty((1, model.config.n_vocab), np.float32)

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
        """Append *ids* to the context; return their logits, float32 ``[len(ids), n_vocab]``.

        Nothing is appended if this raises.

        Raises:
            ContextFull: There are not enough free positions, and `context_shift` is off.
            LayoutError: An id is not in the vocabulary.
        """
        self.model.require_open()
        ids = self.model.valid(ids)
        out = np.empty((len(ids), self._logits.shape[1]), np.float32)
        self._make_space(len(ids))
        rows = self.model.decoder.rows
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows]
            self._forward(part, 0, out[start : start + len(part)])
        return out

    @locked
    def eval_last(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the logits of the last id, ``[n_vocab]``.

        The next call overwrites the logits.  This is cheaper than `eval`, because only one row is
        multiplied by the output matrix.
        """
        self._append(ids, 1)
        row: F32 = self._logits[0]
        return row

    @locked
    def read(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the residual stream ``[1, D]`` of the last id.

        The result is the input of `head`.  No logits are computed.
        """
        last = self._append(ids, 0) - 1
        return self.model.decoder.stream(last)

    @locked
    def streams(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the residual stream of each id, ``[T, D]``.

        No logits are computed.
        """
        parts: list[F32] = []
        self._append(ids, 0, lambda: parts.append(self.model.decoder.streams.copy()))
        return np.concatenate(parts)

    def _append(
        self, ids: Sequence[int], wanted: int, each: Callable[[], None] = lambda: None
    ) -> int:
        """Append *ids* in batches; write the logits of the last *wanted* ids to `_logits`.

        *each* is called after each batch.

        Returns:
            The number of ids in the last batch.
        """
        self.model.require_open()
        ids = self.model.valid(ids)
        if not ids:
            raise LayoutError(
                "there is no token to evaluate", remedy="pass a prompt of at least one token"
            )
        self._make_space(len(ids))
        rows = self.model.decoder.rows
        if len(ids) <= rows:  # the usual case while decoding
            self._forward(ids, len(ids) - wanted, self._logits)
            each()
            return len(ids)
        with Progress("prefill", len(ids), "token", shown=self.model.progress) as bar:
            for start in range(0, len(ids), rows):
                part = ids[start : start + rows]
                last = start + rows >= len(ids)
                self._forward(part, len(part) - (wanted if last else 0), self._logits)
                each()
                bar.add(len(part))
        return len(part)

    def _forward(self, ids: Sequence[int], head: int, out: F32) -> None:
        """Append one batch; write the logits of the ids from index *head* on to *out*."""
        self._mend()
        while not run_together([Piece(self, ids, len(ids) - head)], out):
            self._mend()

    def prepare(self, count: int) -> None:
        """Prepare a run of *count* tokens: make space, and evaluate lost tokens again.

        Raises:
            ContextFull: There are not enough free positions, and `shift` is off.
        """
        if len(self._state.tokens) + count > self.n_ctx:
            self._make_space(count)
        if self._state.first_stale is not None:
            self._mend()

    def _mend(self) -> None:
        """Evaluate the tokens again that the state has lost."""
        state, rows = self._state, self.model.setup.limits.rows
        if state.first_stale is None:
            return
        state.rewind(state.length)  # rewinds the states too, after an interrupted run
        while (position := state.first_stale) is not None:
            part = state.tokens[position : position + rows]
            if run_together([Piece(self, part, 0)], self._logits, known=True):
                state.catch_up(position + len(part))

    def settle(self) -> int:
        """Remove the tokens whose state was lost; return the number of remaining tokens.

        `eval` and similar methods evaluate such tokens again instead.  Callers of `run_together`
        have to call `settle` and evaluate the removed tokens themselves.
        """
        state = self._state
        if state.first_stale is not None:
            state.rewind(state.length)  # rewinds the states too, after an interrupted run
        if state.first_stale is not None:
            state.rewind(state.first_stale)
        return state.length

    @locked
    def fork(self, source: "Context", length: int) -> None:
        """Replace the tokens and state of this context by the first *length* tokens of *source*.

        If the device has pages, whole pages of the KV cache are shared.  If the model is recurrent,
        *length* must be the length of *source*.

        Raises:
            LayoutError: *source* has fewer tokens or, if the model is recurrent, a different
                number.
            OutOfPages: No page is free for the part that cannot be shared; this context is then
                empty.
        """
        self.model.require_open()
        self._state.fork(source.state, length)

    # --- Removing tokens ------------------------------------------------------------------------

    def reset(self) -> None:
        """Remove all tokens from the context."""
        self.rewind(0)

    @locked
    def rewind(self, n_tokens: int) -> None:
        """Keep only the first *n_tokens* tokens of the context.

        Tokens beyond `state.reach` are evaluated again.

        Raises:
            LayoutError: *n_tokens* is negative.
        """
        n_tokens = integer("n_tokens", n_tokens)
        if n_tokens < 0:
            raise LayoutError(f"cannot rewind to {brief(n_tokens)} tokens", remedy="pass 0 or more")
        self.model.require_open()
        self._state.rewind(n_tokens)
        self._mend()

    @locked
    def rollback(self, n_tokens: int) -> None:
        """Remove the last *n_tokens* tokens of the context: see `rewind`.

        Raises:
            LayoutError: The context has fewer tokens.
        """
        n_tokens = integer("n_tokens", n_tokens)
        if not 0 <= n_tokens <= self.n_tokens:
            raise LayoutError(
                f"cannot remove the last {brief(n_tokens)} of {self.n_tokens} tokens",
                remedy="pass a number from 0 to n_tokens",
            )
        self.rewind(self.n_tokens - n_tokens)

    @property
    def can_shift(self) -> bool:
        """Whether a full context can remove old tokens to make space for a new one."""
        return self.shift and self.n_ctx > 1

    def _make_space(self, count: int) -> None:
        state = self._state
        full = state.length + count > self.n_ctx
        if full and self.can_shift and count <= self.n_ctx // 2:
            keep = 1 if self.model.tokenizer.add_bos else 0
            self._shift(keep, max(count, (state.length - keep) // 2))
        state.require(count)

    def _shift(self, keep: int, drop: int) -> None:
        """Remove *drop* tokens after the first *keep* tokens."""
        self._mend()
        if self._state.shifts:
            self._state.shift(keep, drop)
            return
        rest = self._state.tokens[keep + drop :]  # evaluated again
        self.rewind(keep)
        self.eval_last(rest)

    # --- State ----------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the context."""
        self.model.require_open()
        return self._state

    @property
    def hidden_states(self) -> HiddenStates | None:
        """The captured hidden states; None when no draft network reads them."""
        self.model.require_open()
        return self._hidden_states

    @locked
    def drop_hidden_states(self) -> None:
        """Stop capturing hidden states, and release the captured ones."""
        self._hidden_states = None

    @locked
    def snapshot(self) -> Snapshot:
        """Return a copy of the state, for `restore`."""
        self.model.require_open()
        self._mend()
        return replace(self._state.snapshot(), model=self.model.identity)

    @locked
    def restore(self, snapshot: Snapshot) -> None:
        """Set tokens and state to *snapshot*.

        An NPU may compute delta nets in integers.  When their states move between such an NPU and
        another kind of device, they are rounded to float32 precision, and the report notes this.
        Later results then differ by as much as the results of the two devices.

        Raises:
            LayoutError: *snapshot* is not a snapshot, is of another model, or does not fit the
                context.  Nothing has changed.
        """
        self.model.require_open()
        if not isinstance(snapshot, Snapshot):
            raise LayoutError(
                f"{brief(snapshot, 40)} is no snapshot", remedy="pass the result of snapshot()"
            )
        if snapshot.model != self.model.identity:
            raise LayoutError(
                f"a snapshot of {len(snapshot.tokens)} tokens does not fit: it is of another model",
                remedy="restore snapshots of the same file, opened with the same kv_type",
            )
        self._take(snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        """Set tokens and state to *snapshot*; note in the report if states were rounded."""
        notes = self.model.ledger.notes
        note = "states of delta nets came from another kind of device, and were rounded"
        if not self._state.restore(snapshot) and note not in notes:
            notes.append(note)

    def save_state(self, path: str | os.PathLike[str]) -> None:
        """Write tokens and state to the file *path*.  An error leaves an existing file unchanged.

        Raises:
            StateFormatError: The file cannot be written.
        """
        state_file.save(self.snapshot(), path)

    @locked
    def load_state(self, path: str | os.PathLike[str]) -> None:
        """Set tokens and state to those in the file *path*, with the rounding of `restore`.

        Raises:
            StateFormatError: The file is damaged, is of another model or kv_type, or does not fit
                the context.  Nothing has changed.
        """
        self.model.require_open()
        identity, n_vocab = self.model.identity, self.model.config.n_vocab
        self._take(state_file.load(self._state, identity, n_vocab, path))

    def release(self) -> None:
        """Release all memory of this context; only its tokens can still be read."""
        self._state.release()
        self.model.free(self._state.sequence)
        del self._hidden_states, self._logits


class Piece(NamedTuple):
    """The next tokens of a context.

    Attributes:
        context: The context.
        ids: The token ids.
        wanted: The number of last ids whose logits are computed.
    """

    context: Context
    ids: Sequence[int]
    wanted: int


def run_together(pieces: Sequence[Piece], out: F32, *, known: bool = False) -> bool:
    """Append tokens to contexts of one model, which is open, in one run.

    The logits have the same bits as with a separate run for each context (docs/numerics.md).

    Args:
        pieces: Valid ids for different contexts, together at most the rows of a run.
        out: Receives the logits ``[sum of wanted, V]``, in the order of *pieces*.
        known: Whether the contexts have the tokens already, and only their states lack them.

    Returns:
        False if a device failed and the states of all contexts of the model are lost; call `settle`
        on each of them.  Call `settle` also after an exception.
    """
    model, chunks = pieces[0].context.model, list[Chunk]()
    for context, ids, wanted in pieces:
        state, hidden = context._state, context._hidden_states
        position = state.begin()
        if position is None:
            break
        if hidden:
            hidden.begin(position, len(ids))
        chunks.append(Chunk(state.sequence, position, ids, wanted))
    try:
        values = model.decoder.run(chunks, out) if len(chunks) == len(pieces) else None
    except NumericsError as error:
        raise _with_larger_cache(error, model) from error
    row = 0
    for context, ids, _ in pieces:
        if values is None:
            context._state.lose()
            continue
        if context._hidden_states:
            context._hidden_states.end(ids, values, row)
        if not known:
            context._state.end(ids)
        row += len(ids)
    return values is not None


def _with_larger_cache(error: NumericsError, model: LoadedModel) -> NumericsError:
    """Return *error*, with the remedy for keys and values that exceed the range of float16."""
    if model.setup.limits.kv_dtype != "f16":
        return error
    return NumericsError(
        error.what,
        remedy="open the model with kv_type='f32' (-ctk f32), as its keys or values may exceed the "
        f"range of float16; otherwise: {error.remedy}",
    )
