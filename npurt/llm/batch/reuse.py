"""What was evaluated already of a text: by one that is kept, or by one that runs."""

import contextlib

from npurt.errors import OutOfPages, SettingError
from npurt.llm.batch.events import Counts
from npurt.llm.batch.prefixes import PAGE, Entry, Prefixes
from npurt.llm.batch.sequence import Sequence
from npurt.llm.session.context import Context, Piece
from npurt.llm.session.model import Model
from npurt.llm.spec.assistant import shared

LEAST_COPIED = 16  # tokens that a copy of states must save; copying takes as long as some tokens


class Reuse:
    """Finds and forks what was evaluated of texts.

    Args:
        model: The model.
        prefixes: The kept texts.
        running: The texts that run; the list is the scheduler's.
        counts: Of the engine.

    Attributes:
        prefixes, recurrent: As given; whether states only go forward.
    """

    def __init__(
        self, model: Model, prefixes: Prefixes, running: list[Sequence], counts: Counts
    ) -> None:
        self.prefixes = prefixes
        self.recurrent = model.executor.recurrent
        self._model = model
        self._running = running
        self._counts = counts

    def new_context(self) -> Context:
        """Return a context; when no sequence is free, release that of a kept prefix.

        Raises:
            SettingError: None is kept.
        """
        while True:
            try:
                return Context(self._model)
            except SettingError:
                if not self.prefixes.evict():
                    raise

    def beginning(self, text: Sequence) -> tuple[Context | None, Entry | None, int, int]:
        """Return the evaluated text whose beginning *text* has.

        Returns:
            A context to fork; its entry, if it is kept; how many tokens of it to fork; how many
            tokens of *text* some kept text begins with.
        """
        if text.scoring:  # all of it is evaluated
            return None, None, 0, 0
        entry, length, equal = self.prefixes.find(text.history, text.salt)
        source = entry.context if entry else None
        for other in self._running if not self.recurrent else ():
            if other is not text and other.context and other.salt == text.salt:
                same = shared(other.context.state.tokens, text.history[:-1])
                if same > length:
                    source, entry, length = other.context, None, same
        return source, entry, length, equal

    def begin(self, text: Sequence, context: Context) -> None:
        """Fork a text with the same beginning for *text*; decide where to keep copies of states."""
        source, entry, length, equal = self.beginning(text)
        if source and not self._fork(source, context, length):
            length = 0
        elif entry:
            self.prefixes.use(entry)
        if text.cached is None:  # it begins for the first time
            text.cached = min(length, text.prompt)
            self._counts.hits += bool(length)
            self._counts.misses += not length
            self._counts.cached += text.cached
        if self.recurrent and self.prefixes.most:
            diverged = equal if equal - length >= LEAST_COPIED else 0
            marks = {diverged, text.reusable // PAGE * PAGE, text.prompt}
            for other in self._running:  # that begin now, too, and alike
                if other is not text and other.salt == text.salt and _is_new(other):
                    same = shared(text.history, other.history[:-1])
                    marks.add(same if same - length >= LEAST_COPIED else 0)
            if text.prompt - 1 in marks:  # that is as good
                marks.discard(text.prompt)
            text.marks = sorted(mark for mark in marks if length < mark <= len(text.history))

    def being_read(self, text: Sequence, other: Sequence, piece: Piece) -> bool:
        """Return whether *text* should wait for *piece* of *other*, which is of its prompt too.

        Of states that only go forward, it waits for the copy at the end of what both begin with.
        """
        if text.scoring or other.salt != text.salt:
            return False
        start = piece.context.n_tokens
        if self.recurrent:
            same = shared(other.history, text.history[:-1])
            mark = max((mark for mark in other.marks if start < mark <= same), default=0)
            return mark >= LEAST_COPIED + self.beginning(text)[2]
        same = shared(other.history[: start + len(piece.ids)], text.history[:-1])
        return same - start >= LEAST_COPIED

    def _fork(self, source: Context, target: Context, length: int) -> bool:
        """Share the first *length* tokens of *source* with *target*; return False if it must wait.

        There is no page, no memory, or a device lost the states of *source*.
        """
        with contextlib.suppress(OutOfPages, MemoryError):
            if source.state.behind is None:
                target.fork(source, length)
        return target.settle() == length  # also after an exception

    def keep_copy(self, text: Sequence, context: Context) -> None:
        """Keep the states of a prompt's part for other requests."""
        if self.prefixes.has(context.history, text.salt):
            return
        try:
            copy = self.new_context()
        except SettingError:
            return  # contexts of the caller have all sequences
        if self._fork(context, copy, context.n_tokens):
            self.prefixes.add(copy, text.salt, fixed=context.n_tokens != text.prompt)
        else:
            copy.release()


def _is_new(text: Sequence) -> bool:
    """Return whether nothing of *text* was evaluated in its context yet."""
    return text.context is not None and not text.context.n_tokens and not text.scoring
