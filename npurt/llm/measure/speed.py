"""Estimate the speed of a model on a device's boards with its cost model, without measurement."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from npurt.backend.estimates import EstimatedBoard, Estimator, ModelWeight, ModelWork
from npurt.llm.file.config import Config
from npurt.llm.measure.estimate import WeightEstimate

PROMPT = 128  # tokens of the prompt


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second on a board, each as the lowest, expected and highest rate."""

    board: EstimatedBoard
    prompt_tokens: int
    prompt: tuple[float, float, float]
    decode: tuple[float, float, float]

    def as_json(self) -> dict[str, Any]:
        """Return the rates and the parts of the board's title as JSON data."""
        rates = {"prompt_tokens": self.prompt_tokens, "prompt": self.prompt, "decode": self.decode}
        return {**self.board.facts, **rates}


def speeds(
    config: Config, estimates: Sequence[WeightEstimate], estimator: Estimator
) -> list[Rates]:
    """Return the estimated speed of a model on each board, from the estimates of its weights."""
    step = work(config, estimates)
    return [
        Rates(board, PROMPT, rates(board, step, PROMPT), rates(board, step, 1))
        for board in estimator.boards
    ]


def rates(board: EstimatedBoard, step: ModelWork, tokens: int) -> tuple[float, float, float]:
    """Return the lowest, expected and highest rate of a run of *tokens*, in tokens per second.

    The tokens are those of one sequence, or of several that are decoded together.
    """
    seconds = board.seconds(step, tokens)
    return tokens / seconds.high, tokens / seconds.expected, tokens / seconds.low


def work(config: Config, estimates: Iterable[WeightEstimate], *, every: bool = False) -> ModelWork:
    """Return the work of a token; equal calls of several layers are merged, with a count.

    Args:
        config: The configuration of the model.
        estimates: The estimates of its weights.
        every: Whether the logits of every token are computed, or only those of the last.
    """
    calls: dict[str, list[tuple[str, int, int, str, int]]] = {}
    for estimate in estimates:
        *stack, n, k = estimate.shape
        each = (estimate.call.rpartition(".")[2], n, k, estimate.form, stack[0] if stack else 1)
        calls.setdefault(estimate.call, []).append(each)
    top_k = config.experts.top_k if config.experts else 1
    weights = []
    for i, (call, layers) in enumerate(Counter(map(tuple, calls.values())).items()):
        for role, n, k, scheme, experts in call:
            head = role == "output" and not every
            chosen = top_k if experts > 1 else 1
            weights.append(ModelWeight(n, k, scheme, str(i), head, layers, experts, chosen))
    return ModelWork(weights, config.n_layers, _units(config))


def _units(config: Config) -> int:
    """Return the sum of model width and feed-forward width, over all layers."""
    experts = config.experts
    feedforward = experts.top_k * experts.n_ff + experts.n_ff_shared if experts else config.n_ff
    return config.n_layers * (config.width + feedforward)
