"""Random schedules of several sequences on one segment, compared with each sequence alone."""

import contextlib
from collections import defaultdict

import numpy as np
from hypothesis import strategies as st

from npurt.device.segment import Limits, recurrent
from npurt.errors import OutOfPages
from npurt.graph.rows import Rows
from npurt.llm.arch.reading import describe
from npurt.llm.arch.weights import FileWeights
from npurt.llm.file.gguf import GGUF

POSITIONS, ROWS = 192, 48  # of a sequence, of a run


def limits(sequences, kv_bytes=None):
    return Limits(rows=ROWS, positions=POSITIONS, sequences=sequences, kv_bytes=kv_bytes)


@contextlib.contextmanager
def compiled(path, device, sizes):
    """Yield a segment of the model in *path*."""
    with GGUF(path) as file:
        graph = describe(file).graph(POSITIONS)
        segment = device.compile(graph.graph, FileWeights(file, graph), sizes)
        try:
            yield segment
        finally:
            segment.close()


def page_bytes(path):
    """Return the bytes of a page of all layers in float16."""
    from npurt.graph.ops import Attention

    with GGUF(path) as file:
        ops = describe(file).graph(POSITIONS).graph.ops
    attentions = [op for op in ops if isinstance(op, Attention)]
    return sum(2 * 2 * 64 * (op.q.columns // op.heads) * op.kv_heads for op in attentions)


class Schedule:
    """Random runs, forks, rewinds and ends of sequences; stores the logits of every wanted row."""

    def __init__(self, draw, segment, maximum, vocabulary):
        self.draw, self.segment, self.maximum, self.vocabulary = draw, segment, maximum, vocabulary
        self.texts = {}  # tokens of each sequence
        self.seen = {}  # tokens up to a row -> logits of the row
        self.next, self.out_of_pages = 0, 0
        self.recurrent = bool(recurrent(segment.part))

    def step(self):
        """Do one random action."""
        what = ["run"] * 4 + (["fork", "rewind", "forget"] if self.texts else [])
        getattr(self, self.draw(st.sampled_from(what)))()

    def any(self):
        return self.draw(st.sampled_from(sorted(self.texts)))

    def begin(self):
        """Return the number of a new sequence; end another sequence if there are too many."""
        if len(self.texts) == self.maximum:
            self.forget()
        self.next += 1
        return self.next - 1

    def run(self):
        """Run rows of some sequences; the positions of each sequence ascend."""
        while len(self.texts) < self.draw(st.integers(1, self.maximum)):
            self.texts[self.begin()] = []
        spans, left = [], ROWS
        for sequence in self.draw(st.permutations(sorted(self.texts))):
            available = min(left, POSITIONS - len(self.texts[sequence]))
            count = min(available, self.draw(st.sampled_from([0, 1, 1, 2, 7, 40])))
            left -= count
            if count:
                tokens = st.lists(st.integers(0, self.vocabulary - 1), min_size=count,
                                  max_size=count)  # fmt: skip
                spans.append((sequence, self.draw(tokens)))
        if not spans:
            return
        rows = [(s, len(self.texts[s]) + i, t) for s, new in spans for i, t in enumerate(new)]
        if self.draw(st.booleans()):  # interleave the rows of the sequences
            rows.sort(key=lambda row: (row[1], row[0]))
        sequences, positions, tokens = map(np.array, zip(*rows, strict=True))
        wanted = np.array(self.draw(st.lists(st.booleans(), min_size=len(rows),
                                             max_size=len(rows))))  # fmt: skip
        try:
            made = self.segment.run({"tokens": tokens}, Rows(sequences, positions, wanted))
        except OutOfPages:
            self.out_of_pages += 1
            return
        for sequence, new in spans:
            self.texts[sequence] = self.texts[sequence] + new
        for (sequence, position, _), logits in zip(
            (row for row, flag in zip(rows, wanted, strict=True) if flag),
            made["logits"], strict=True,
        ):  # fmt: skip
            self.saw(tuple(self.texts[sequence][: position + 1]), logits)

    def saw(self, text, logits):
        before = self.seen.setdefault(text, logits)
        assert np.array_equal(before, logits), "one text has logits of two kinds"

    def fork(self):
        source = self.any()
        length = len(self.texts[source])
        if not self.recurrent:
            length = self.draw(st.integers(0, length))
        target = self.begin()
        if source not in self.texts:
            return
        try:
            self.segment.fork(source, target, length)
        except OutOfPages:
            self.out_of_pages += 1
            return
        self.texts[target] = self.texts[source][:length]

    def rewind(self):
        sequence = self.any()
        length = self.draw(st.integers(0, len(self.texts[sequence])))
        length = self.segment.reach(sequence, length)
        self.segment.rewind(sequence, length)
        self.texts[sequence] = self.texts[sequence][:length]

    def forget(self):
        sequence = self.any()
        self.segment.forget(sequence)
        del self.texts[sequence]


def check_alone(seen, segment):
    """Check that each sequence alone, in runs of `ROWS` rows, gives the logits in *seen*."""
    longest = [t for t in seen if not any(o[: len(t)] == t and len(o) > len(t) for o in seen)]
    compared = defaultdict(int)
    for text in longest:
        segment.forget(0)
        for start in range(0, len(text), ROWS):
            part = np.array(text[start : start + ROWS])
            made = segment.run({"tokens": part}, Rows.of(len(part), start))["logits"]
            for i, logits in enumerate(made):
                wanted = seen.get(text[: start + i + 1])
                if wanted is not None:
                    assert np.array_equal(logits, wanted), (len(text), start + i)
                    compared[text[: start + i + 1]] += 1
    assert compared.keys() == seen.keys()
