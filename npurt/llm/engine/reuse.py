"""Find tokens of a sequence that were evaluated already, and fork their states."""

import contextlib

from npurt.errors import OutOfPages, SettingError
from npurt.llm.engine.events import Counts
from npurt.llm.engine.prefixes import PAGE, Entry, Prefixes
from npurt.llm.engine.sequence import Sequence
from npurt.llm.session.context import Context, Piece
from npurt.llm.session.loaded_model import LoadedModel
from npurt.llm.spec.assistant import shared

MIN_COPIED = 16  # least tokens that a copy of states must save, because copying takes time


class Reuse:
    """Finds common prefixes with cached and running sequences, and forks them.

    Args:
        model: The model.
        prefixes: The prefix cache.
        running: The scheduler's list of running sequences.
        counts: The engine's counts.

    Attributes:
        prefixes: As in the arguments.
        recurrent: Whether the model has recurrent states.
    """

    def __init__(
        self, model: LoadedModel, prefixes: Prefixes, running: list[Sequence], counts: Counts
    ) -> None:
        self.prefixes = prefixes
        self.recurrent = model.executor.recurrent
        self._model = model
        self._running = running
        self._counts = counts

    def new_context(self) -> Context:
        """Return a new context; if the model has none left, evict cached prefixes.

        Raises:
            SettingError: The model has no context left, and the prefix cache is empty.
        """
        while True:
            try:
                return Context(self._model)
            except SettingError:
                if not self.prefixes.evict():
                    raise

    def beginning(self, sequence: Sequence) -> tuple[Context | None, Entry | None, int, int]:
        """Return the context with the longest reusable prefix of *sequence*.

        A sequence whose prompt is scored evaluates every token whose next one has no score yet.

        Returns:
            The context to fork, or None; its entry in the prefix cache, or None if a running
            sequence has the context; the number of tokens to fork; the longest common prefix with
            any entry.
        """
        entry, length, equal = self.prefixes.find(sequence.history, sequence.salt)
        source = entry.context if entry else None
        for other in self._running if not self.recurrent else ():
            if other is not sequence and other.context and other.salt == sequence.salt:
                same = shared(other.context.state.tokens, sequence.history[:-1])
                if same > length:
                    source, entry, length = other.context, None, same
        if sequence.scoring and length > sequence.scored:
            if self.recurrent or not sequence.scored:
                return None, None, 0, 0
            length = sequence.scored
        return source, entry, length, equal

    def begin(self, sequence: Sequence, context: Context) -> None:
        """Fork the longest reusable prefix into *context*; choose where to copy states."""
        source, entry, length, equal = self.beginning(sequence)
        if source and not self._fork(source, context, length):
            length = 0
        elif entry:
            self.prefixes.use(entry)
        if sequence.cached is None:  # not after a preemption
            sequence.cached = min(length, sequence.prompt)
            self._counts.hits += bool(length)
            self._counts.misses += not length
            self._counts.cached += sequence.cached
        if self.recurrent and self.prefixes.maximum:
            diverged = equal if equal - length >= MIN_COPIED else 0
            marks = {diverged, sequence.reusable // PAGE * PAGE, sequence.prompt}
            for other in self._running:  # new sequences with a common prefix
                if other is not sequence and other.salt == sequence.salt and _is_new(other):
                    same = shared(sequence.history, other.history[:-1])
                    marks.add(same if same - length >= MIN_COPIED else 0)
            if sequence.prompt - 1 in marks:  # a copy at either position serves the same requests
                marks.discard(sequence.prompt)
            sequence.marks = sorted(
                mark for mark in marks if length < mark <= len(sequence.history)
            )

    def being_read(self, sequence: Sequence, other: Sequence, piece: Piece) -> bool:
        """Return whether *sequence* should wait for the step that evaluates *piece* of *other*.

        It waits if *piece* evaluates tokens of a common prefix, which it can fork afterwards.  With
        recurrent states, it waits for the copy at the end of the common prefix.
        """
        if sequence.scoring or other.salt != sequence.salt:
            return False
        start = piece.context.n_tokens
        if self.recurrent:
            same = shared(other.history, sequence.history[:-1])
            mark = max((mark for mark in other.marks if start < mark <= same), default=0)
            return mark >= MIN_COPIED + self.beginning(sequence)[2]
        same = shared(other.history[: start + len(piece.ids)], sequence.history[:-1])
        return same - start >= MIN_COPIED

    def _fork(self, source: Context, target: Context, length: int) -> bool:
        """Fork the first *length* tokens of *source* into *target*; return whether that succeeded.

        The fork fails if there is no free page or memory, or if a device lost the states of
        *source*.
        """
        with contextlib.suppress(OutOfPages, MemoryError):
            if source.state.first_stale is None:
                target.fork(source, length)
        return target.settle() == length  # settles *target* also after a suppressed exception

    def keep_copy(self, sequence: Sequence, context: Context) -> None:
        """Add a copy of *context*, which has evaluated a part of a prompt, to the prefix cache."""
        if self.prefixes.has(context.history, sequence.salt):
            return
        try:
            copy = self.new_context()
        except SettingError:
            return  # contexts of the caller use all sequences
        if self._fork(context, copy, context.n_tokens):
            self.prefixes.add(copy, sequence.salt, fixed=context.n_tokens != sequence.prompt)
        else:
            copy.release()


def _is_new(sequence: Sequence) -> bool:
    """Return whether *sequence* is running, has evaluated no token, and scores no prompt."""
    return sequence.context is not None and not sequence.context.n_tokens and not sequence.scoring
