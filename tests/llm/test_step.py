"""Tests of the steps that `Llama` and the engine share."""

import sys

import numpy as np

import npurt
from npurt.llm.decode.step import DecodeStep
from npurt.llm.session.context import Context, Piece
from tests.llm import tiny

PATH = tiny.path("llama3", "q8_0")
OPTIONS = {"n_ctx": 64, "n_threads": 1, "verify": "off", "progress": False}
FUNCTIONS = 36  # of npurt/llm, for each decoded token
DEPTH = 7  # calls from the caller to the executor


class Walk:
    """The functions of npurt/llm that a call enters, and its depth at `Executor.run`."""

    def __init__(self):
        self.functions, self.depth, self._at = set(), 0, 0

    def __call__(self, frame, event, _):
        code = frame.f_code
        if "/npurt/" not in code.co_filename or event not in ("call", "return"):
            return
        self._at += 1 if event == "call" else -1
        if event == "call" and "/npurt/llm/" in code.co_filename:
            self.functions.add((code.co_filename, code.co_qualname))
        if event == "call" and code.co_qualname == "Executor.run":
            self.depth = self._at


def test_a_decoded_token_enters_few_functions():
    """A reader follows a token through these functions, and each costs time for every token."""
    with npurt.Llama(PATH, "cpu", **OPTIONS) as llm:
        stream = llm.generate([1, 2, 3], max_tokens=9, temperature=0, ignore_eos=True, stream=True)
        for _ in range(4):
            next(stream)
        before, walk = sys.getprofile(), Walk()
        sys.setprofile(walk)
        try:
            next(stream)
        finally:
            sys.setprofile(before)

    assert len(walk.functions) <= FUNCTIONS, sorted(walk.functions)
    assert 0 < walk.depth <= DEPTH


def test_logits_of_a_step_are_taken_in_order():
    with npurt.Llama(PATH, "cpu", max_sequences=3, **OPTIONS) as llm:
        first, second = Context(llm.model), Context(llm.model)
        step = DecodeStep(llm.config.n_vocab)

        assert step.run([], [Piece(first, [5, 6, 7], 2), Piece(second, [9], 1)])

        assert step.rows == 4
        for ids, wanted in (([5, 6, 7], 2), ([9], 1)):
            llm.reset()
            np.testing.assert_array_equal(step.take(wanted), llm.eval(ids)[-wanted:])
        first.release()
        second.release()
