"""One step of speculative decoding: draft, verify in one pass, keep what is right."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from npurt.device import F32
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.drafter import Drafter

if TYPE_CHECKING:
    from npurt.llm.model import Llama

Choose = Callable[[F32, Sequence[int], Sequence[int]], list[int]]


class Speculator:
    """A drafter and the controller that decides how far it may go.

    Args:
        drafter: What guesses.
        most: Tokens to guess at once, at most.
        fixed: Always guess that many, whatever it costs: for measurements.
    """

    def __init__(self, drafter: Drafter, most: int, *, fixed: bool = False) -> None:
        self.drafter = drafter
        self.controller = Controller(most, fixed=fixed, at_once=drafter.at_once)

    def step(self, llm: "Llama", history: list[int], room: int, choose: Choose) -> list[int]:
        """Return the tokens, at least one, that follow *history*, whose last is not evaluated yet.

        Args:
            llm: The model, whose cache holds ``history[:-1]`` and afterwards what is returned, but
                for the last.
            history: Prompt and text so far.
            room: How many tokens may be guessed at most.
            choose: Called with logits ``[1 + guesses, V]``, the guesses and the history; returns
                what is accepted and one token more.
        """
        start = time.perf_counter()
        wanted = min(room, self.controller.choose())
        guesses = self.drafter.propose(history, wanted) if wanted > 0 else []
        drafted = time.perf_counter()
        before = llm.n_tokens
        if guesses:
            chosen = choose(llm.eval([history[-1], *guesses]), guesses, history)
            llm.rewind(before + len(chosen))
        else:
            chosen = choose(llm.eval_last(history[-1:])[None], [], history)
        self.controller.observe(
            len(guesses),
            len(chosen) - 1,
            drafted - start,
            time.perf_counter() - drafted,
            wanted=max(wanted, 0),
        )
        return chosen
