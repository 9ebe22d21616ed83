"""Counts of speculative decoding, for one text or for all texts of a model."""

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Speculation:
    """How many tokens were drafted and accepted, and how long that took."""

    passes: int = 0  # of the model, plain ones included
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    seconds: float = 0.0
    plain_seconds: float = 0.0  # the same tokens without drafts, estimated; NaN: unknown

    @property
    def mean_accepted(self) -> float | None:
        """Mean tokens of a pass of the model; None before the first pass."""
        return self.tokens / self.passes if self.passes else None

    @property
    def speedup(self) -> float | None:
        """Estimated time without drafts, divided by the measured time; None if unknown."""
        known = self.seconds > 0 and not math.isnan(self.plain_seconds)
        return self.plain_seconds / self.seconds if known else None

    def add(self, drafted: int, accepted: int, seconds: float, plain: float) -> None:
        """Add a pass that took *seconds*, and would have taken *plain* for its tokens."""
        self.passes += 1
        self.drafted += drafted
        self.accepted += accepted
        self.tokens += accepted + 1
        self.seconds += seconds
        self.plain_seconds += plain

    def figures(self) -> dict[str, float | None]:
        """Return the counts for scripts."""
        return {
            "drafted": self.drafted,
            "accepted": self.accepted,
            "passes": self.passes,
            "mean_accepted": self.mean_accepted,
            "speedup": self.speedup,
        }

    def line(self) -> str:
        """Return the counts as a sentence."""
        length = "" if self.mean_accepted is None else f", {self.mean_accepted:.2f} tokens a pass"
        gain = "" if self.speedup is None else f", estimated speedup {self.speedup:.2f}"
        return f"speculation: {self.drafted} drafted, {self.accepted} accepted{length}{gain}"
