"""One step of speculative decoding: draft tokens, verify them in one pass, keep the right ones."""

import time
from collections.abc import Callable, Sequence

from npurt.device import F32
from npurt.llm.session.context import Context
from npurt.llm.spec.controller import Controller
from npurt.llm.spec.drafter import Drafter, likeliest

Choose = Callable[[F32, Sequence[int], Sequence[int]], list[int]]
Fits = Callable[[Sequence[int], Sequence[int]], int]


class Speculator:
    """A drafter and the controller that decides how far it may go.

    Args:
        drafter: The source of draft tokens.
        most: The most tokens to draft at once.
        fixed: Draft that many at each step, whatever they cost; for measurements.
    """

    def __init__(self, drafter: Drafter, most: int, *, fixed: bool = False) -> None:
        self.drafter = drafter
        self.controller = Controller(
            most, fixed=fixed, at_once=drafter.at_once, share=drafter.share
        )

    def step(
        self,
        context: Context,
        history: list[int],
        room: int,
        choose: Choose,
        fits: Fits | None = None,
    ) -> list[int]:
        """Return the tokens, at least one, that follow *history*.

        Args:
            context: It holds ``history[:-1]``; afterwards it holds *history* and all returned
                tokens but the last.
            history: Prompt and text so far.
            room: The most tokens that may be drafted.
            choose: A function that gets logits ``[1 + draft, V]``, the draft tokens and the
                history.  It returns the accepted draft tokens and one token more.
            fits: A function of the history and draft tokens that returns how many of these may be
                right, such as those that a grammar allows; None: all may.
        """
        start = time.perf_counter()
        behind = self.drafter.behind(history)
        wanted = min(room, self.controller.choose(behind))
        if behind and wanted > 0:
            self.drafter.prepare(history)
        ready = time.perf_counter()
        draft, drawn = self._draft(history, wanted, fits) if wanted > 0 else ([], 0)
        drafted = time.perf_counter()
        chosen = self._verify(context, history, draft, choose)
        self.controller.observe(
            len(draft),
            len(chosen) - 1,
            drafted - ready,
            time.perf_counter() - drafted,
            drawn=drawn,
            behind=behind if wanted > 0 else 0,
            read_seconds=ready - start,
        )
        return chosen

    def _draft(self, history: list[int], most: int, fits: Fits | None) -> tuple[list[int], int]:
        """Return the draft tokens to verify, and how many the drafter computed."""
        thresholds, probability = self.controller.thresholds, 1.0
        tokens: list[int] = []
        for token, chance in self.drafter.draft(history, most):
            probability *= chance
            tokens.append(token)
            wrong = fits is not None and fits(history, tokens) < len(tokens)
            if wrong or probability < thresholds.verify:
                return tokens[:-1], len(tokens)
            if probability < thresholds.draft:
                break
        return tokens, len(tokens)

    def _verify(
        self, context: Context, history: list[int], draft: list[int], choose: Choose
    ) -> list[int]:
        """Return the tokens of *draft* that are right, and one token more."""
        before = context.n_tokens
        if draft:
            chosen = choose(context.eval([history[-1], *draft]), draft, history)
            context.rewind(before + len(chosen))
            return chosen
        logits = context.eval_last(history[-1:])
        if self.drafter.share and self.controller.curious:
            self.controller.believe(likeliest(logits)[1])
        return choose(logits[None], [], history)
