"""One step of speculative decoding: draft, verify in one pass, keep what is right."""

import time
from collections.abc import Callable, Sequence

from npurt.device import F32
from npurt.llm.session.context import Context
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.drafter import Drafter, likeliest

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
        self.controller = Controller(
            most, fixed=fixed, at_once=drafter.at_once, share=drafter.share
        )

    def step(self, llm: Context, history: list[int], room: int, choose: Choose) -> list[int]:
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
        behind = self.drafter.behind(history)
        wanted = min(room, self.controller.choose(behind))
        if behind and wanted > 0:
            self.drafter.prepare(history)
        ready = time.perf_counter()
        guesses, drawn = self._guess(history, wanted) if wanted > 0 else ([], 0)
        drafted = time.perf_counter()
        chosen = self._verify(llm, history, guesses, choose)
        self.controller.observe(
            len(guesses),
            len(chosen) - 1,
            drafted - ready,
            time.perf_counter() - drafted,
            drawn=drawn,
            behind=behind if wanted > 0 else 0,
            read_seconds=ready - start,
        )
        return chosen

    def _guess(self, history: list[int], most: int) -> tuple[list[int], int]:
        """Return guesses that are worth their time, and how many were made for them."""
        worth, sure = self.controller.worth, 1.0
        tokens: list[int] = []
        for token, chance in self.drafter.guesses(history, most):
            sure *= chance
            if sure < worth.check:
                return tokens, len(tokens) + 1
            tokens.append(token)
            if sure < worth.draw:
                break
        return tokens, len(tokens)

    def _verify(
        self, llm: Context, history: list[int], guesses: list[int], choose: Choose
    ) -> list[int]:
        """Return the *guesses* that are right, and one token more."""
        before = llm.n_tokens
        if guesses:
            chosen = choose(llm.eval([history[-1], *guesses]), guesses, history)
            llm.rewind(before + len(chosen))
            return chosen
        logits = llm.eval_last(history[-1:])
        if self.drafter.share and self.controller.curious:
            self.controller.believe(likeliest(logits)[1])
        return choose(logits[None], [], history)
