"""Helpers that build the graph of a GGUF file and run it in the interpreter."""

import functools
import itertools

import numpy as np

from npurt.graph.interpreter import Interpreter
from npurt.graph.rows import Rows
from npurt.graph.state import States
from npurt.llm.arch.reading import describe
from npurt.llm.file.gguf import GGUF


@functools.lru_cache(maxsize=4)
def read(path, n_ctx=64):
    """Return the model graph of a file and a function that loads its weights and tables."""
    file = GGUF(path)
    model = describe(file).graph(n_ctx)

    @functools.cache
    def load(name):
        if name in model.tables:
            return model.tables[name]
        part = model.parts.get(name)
        values = file[part.tensor if part else name].dequantize().astype(np.float64)
        return values if part is None or part.rows is None else values[part.rows]

    return model, load


def hidden(path, ids, types=None, dtype=np.float64):
    """Return the hidden states that an encoder computes from *ids*."""
    model, load = read(path)
    given = {"tokens": np.asarray(ids), "positions": np.arange(len(ids)),
             "types": np.zeros(len(ids), int) if types is None else types}  # fmt: skip
    interpreter = Interpreter(model.graph, load, dtype)
    return interpreter.run(given, Rows.of(len(ids)), States(model.graph, dtype))["hidden"]


def logits(path, ids, cuts=(), dtype=np.float64):
    """Return the logits of *ids*, evaluated in runs that end at *cuts* and at the end."""
    model, load = read(path)
    interpreter = Interpreter(model.graph, load, dtype)
    states = States(model.graph, dtype)
    edges = [0, *cuts, len(ids)]
    parts = [
        interpreter.run(
            {"tokens": np.asarray(ids[start:end])}, Rows.of(end - start, start), states
        )["logits"]
        for start, end in itertools.pairwise(edges)
    ]
    return np.concatenate(parts)
