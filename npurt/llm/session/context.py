"""A context: the tokens of one sequence and their state, evaluated by a model."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from npurt.device import F32
from npurt.errors import LayoutError, brief
from npurt.llm.arch.decoder import Chunk
from npurt.llm.session.lock import locked
from npurt.llm.session.model import Model
from npurt.llm.session.progress import Progress
from npurt.llm.state import state_file
from npurt.llm.state.hidden_states import HiddenStates
from npurt.llm.state.state import Snapshot, State
from npurt.runtime.open.arguments import integer


class Context:
    """A sequence of tokens that a model has seen.

    A model has room for some contexts: see `Setup.limits`.  `release` gives the room back.

    Args:
        model: The model.
        shift: When the context is full, forget the older half.

    Attributes:
        model: As given.
        shift: As given; it may be changed.
        lock: The model's.
        n_ctx: Positions of the context.

    Raises:
        SettingError: The model has no room for another context.
    """

    def __init__(self, model: Model, *, shift: bool = False) -> None:
        setup = model.setup
        self.model = model
        self.shift = shift
        self.lock = model.lock
        self.n_ctx = model.n_ctx
        self._state = State(
            model.config, setup.graph.graph, model.executor, self.n_ctx, setup.limits.kv_dtype,
            model.take_sequence(),
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
        """Append *ids* to the cache; return their logits, float32 ``[len(ids), n_vocab]``.

        Raises:
            ContextFull: The tokens do not fit, and `context_shift` is off; nothing is appended.
            LayoutError: An id is not in the vocabulary; nothing is appended.
        """
        self.model.require_open()
        ids = self.model.valid(ids)
        out = np.empty((len(ids), self._logits.shape[1]), np.float32)
        self._make_room(len(ids))
        rows = self.model.decoder.rows
        for start in range(0, len(ids), rows):
            part = ids[start : start + rows]
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
    def eval_rows(self, ids: Sequence[int]) -> F32:
        """Append valid *ids*, as many as a run can have; return their logits ``[T, V]``.

        The next call overwrites them.
        """
        if len(ids) > len(self._logits):
            self._logits = np.empty((len(ids), self._logits.shape[1]), np.float32)
        self._make_room(len(ids))
        self._forward(ids, 0, self._logits)
        return self._logits[: len(ids)]

    @locked
    def read(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the last one's residual stream ``[1, D]``, for `head`.

        No logits are computed.
        """
        last = self._append(ids, 0) - 1
        return self.model.decoder.stream(last)

    @locked
    def streams(self, ids: Sequence[int]) -> F32:
        """Append *ids*, at least one; return the residual stream of each, ``[T, D]``.

        No logits are computed.
        """
        parts: list[F32] = []
        self._append(ids, 0, lambda: parts.append(self.model.decoder.streams.copy()))
        return np.concatenate(parts)

    def _append(
        self, ids: Sequence[int], wanted: int, each: Callable[[], None] = lambda: None
    ) -> int:
        """Append *ids* in batches, with the logits of *wanted* last rows; return the last's size.

        Only the last batch gives logits.  *each* is called after each batch.
        """
        self.model.require_open()
        ids = self.model.valid(ids)
        if not ids:
            raise LayoutError(
                "there is no token to evaluate", remedy="pass a prompt of at least one token"
            )
        self._make_room(len(ids))
        rows = self.model.decoder.rows
        if len(ids) <= rows:  # as each token of a text
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
        """Append one batch; write the logits of rows from *head* on to *out*."""
        self._mend()
        while not run_together([Piece(self, ids, len(ids) - head)], out):
            self._mend()

    def _mend(self) -> None:
        """Evaluate tokens again that the states do not contain any more."""
        state, rows = self._state, self.model.setup.limits.rows
        if state.behind is None:
            return
        state.rewind(state.length)  # to where states can be after an interruption
        while (position := state.behind) is not None:
            part = state.tokens[position : position + rows]
            if _run([Piece(self, part, 0)], self._logits):
                state.catch_up(position + len(part))

    def settle(self) -> int:
        """Forget tokens whose states were lost, and return how many are left.

        `eval` and others evaluate such tokens again.  Callers of `run_together` do that themselves.
        """
        state = self._state
        if state.behind is not None:
            state.rewind(state.length)  # to where states can be after an interruption
        if state.behind is not None:
            state.rewind(state.behind)
        return state.length

    @locked
    def fork(self, source: "Context", length: int) -> None:
        """Begin with the first *length* tokens of *source*, and forget what there was.

        Pages of keys and values are shared where the device has pages.  With recurrent states
        *length* has to be the length of *source*.

        Raises:
            LayoutError: *source* has fewer tokens, or, with recurrent states, another number.
            OutOfPages: There is no page for what cannot be shared; this context is empty.
        """
        self.model.require_open()
        self._state.fork(source.state, length)

    # --- Forgetting tokens ----------------------------------------------------------------------

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
            raise LayoutError(f"{brief(n_tokens)} tokens cannot be kept", remedy="keep 0 or more")
        self.model.require_open()
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
                f"{brief(n_tokens)} of {self.n_tokens} tokens cannot be taken back",
                remedy="take back 0 up to n_tokens",
            )
        self.rewind(self.n_tokens - n_tokens)

    @property
    def can_shift(self) -> bool:
        """Whether a full context makes room for another token."""
        return self.shift and self.n_ctx > 1

    def _make_room(self, count: int) -> None:
        state = self._state
        full = state.length + count > self.n_ctx
        if full and self.can_shift and count <= self.n_ctx // 2:
            keep = 1 if self.model.tokenizer.add_bos else 0
            self._shift(keep, max(count, (state.length - keep) // 2))
        state.require(count)

    def _shift(self, keep: int, drop: int) -> None:
        """Forget *drop* tokens after the first *keep*."""
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
        """Capture no hidden states any more, and release those that were captured."""
        self._hidden_states = None

    @locked
    def snapshot(self) -> Snapshot:
        """Return a copy of the state, for `restore`."""
        self.model.require_open()
        self._mend()
        return replace(self._state.snapshot(), model=self.model.identity)

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
        self.model.require_open()
        if not isinstance(snapshot, Snapshot):
            raise LayoutError(
                f"{brief(snapshot, 40)} is no snapshot", remedy="pass what snapshot() gave"
            )
        if snapshot.model != self.model.identity:
            raise LayoutError(
                f"a snapshot of {len(snapshot.tokens)} tokens does not fit: it is of another model",
                remedy="restore snapshots of the same file, opened with the same kv_type",
            )
        self._take(snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        """Set the state to *snapshot*, and note a rounding."""
        notes = self.model.ledger.notes
        note = "states of delta nets came from another kind of device, and were rounded"
        if not self._state.restore(snapshot) and note not in notes:
            notes.append(note)

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
        self.model.require_open()
        identity, n_vocab = self.model.identity, self.model.config.n_vocab
        self._take(state_file.load(self._state, identity, n_vocab, path))

    def release(self) -> None:
        """Release everything but the tokens, for good."""
        self._state.release()
        self.model.give_back(self._state.sequence)
        del self._hidden_states, self._logits


class Piece(NamedTuple):
    """Tokens that come next in a context.

    Attributes:
        wanted: The number of last tokens whose logits are wanted.
    """

    context: Context
    ids: Sequence[int]
    wanted: int


def run_together(pieces: Sequence[Piece], out: F32) -> bool:
    """Append tokens to contexts of one model, in one run.

    Logits are those that each context would get alone, bit for bit (docs/numerics.md).

    Args:
        pieces: Valid ids for different contexts; no more rows together than the model has.
        out: For the wanted logits ``[sum of wanted, V]``, one piece after another.

    Returns:
        False when a device failed and the states of all contexts of the model are lost: `settle`
        each of them.  `settle` is also needed after an exception.
    """
    pieces[0].context.model.require_open()
    if not _run(pieces, out):
        return False
    for context, ids, _ in pieces:
        context._state.end(ids)
    return True


def _run(pieces: Sequence[Piece], out: F32) -> bool:
    """Do as `run_together` does, but add no tokens to the contexts."""
    decoder, chunks = pieces[0].context.model.decoder, []
    for context, ids, wanted in pieces:
        state, hidden = context._state, context._hidden_states
        chunks.append(Chunk(state.sequence, state.position, ids, wanted))
        if hidden:
            hidden.begin(state.position, len(ids))
    begun = [piece.context._state.begin() for piece in pieces]
    values = decoder.run(chunks, out) if all(begun) else None
    if values is None:
        for context, *_ in pieces:
            context._state.lose()
        return False
    row = 0
    for context, ids, _ in pieces:
        if context._hidden_states:
            context._hidden_states.end(ids, values, row)
        row += len(ids)
    return True
