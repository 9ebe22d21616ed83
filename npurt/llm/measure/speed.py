"""Estimate the speed of a model on an RK3588 with a cost model, without measurement."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from npurt.llm.file.config import Config
from npurt.llm.measure.estimate import WeightEstimate
from npurt.rknpu.device.estimate import Weight, jobs, run_seconds
from npurt.rknpu.plan.cost import CLOCKS, Estimate
from npurt.rknpu.plan.tiling import Plan

PROMPT = 128  # tokens of the prompt
PATCHED_HZ = 600e6  # NPU clock with the driver rocket, in kernels with a frequency patch
BOARDS = (*CLOCKS.items(), ("rocket", PATCHED_HZ))  # driver, clock in Hz


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second with one driver and clock, each as the lowest, expected and highest rate.

    Attributes:
        stock: Whether the clock is the kernel's default.
    """

    driver: str
    mhz: float
    stock: bool
    prompt_tokens: int
    prompt: tuple[float, float, float]
    decode: tuple[float, float, float]


def speeds(config: Config, estimates: Sequence[WeightEstimate]) -> list[Rates]:
    """Return the estimated speed of a model on each board, from the estimates of its weights."""
    weights = matrices(config, estimates)
    found = []
    for driver, hz in BOARDS:
        prompt, decode = (_rates(config, weights, n, driver, hz) for n in (PROMPT, 1))
        found.append(Rates(driver, hz / 1e6, hz == CLOCKS[driver], PROMPT, prompt, decode))
    return found


def rates_together(
    config: Config, estimates: Sequence[WeightEstimate], texts: int, driver: str, hz: float
) -> tuple[float, float, float]:
    """Return the total tokens per second of *texts* sequences that are decoded together."""
    return _rates(config, matrices(config, estimates, every=True), texts, driver, hz)


def product_jobs(
    config: Config, estimates: Sequence[WeightEstimate], texts: int
) -> Iterator[tuple[list[Plan], int]]:
    """Yield each job's plans and number of runs, for a step that decodes *texts* sequences."""
    for plans, _, times in jobs(matrices(config, estimates, every=True), texts):
        yield plans, times


def _rates(
    config: Config, weights: Sequence[Weight], tokens: int, driver: str, hz: float
) -> tuple[float, float, float]:
    seconds: Estimate[float] = run_seconds(
        weights,
        tokens,
        layers=config.n_layers,
        units=units(config),
        driver=driver,
        clock_hz=hz,
    )
    return tokens / seconds.high, tokens / seconds.expected, tokens / seconds.low


def units(config: Config) -> int:
    """Return the sum of model width and feed-forward width, over all layers."""
    experts = config.experts
    feedforward = experts.top_k * experts.n_ff + experts.n_ff_shared if experts else config.n_ff
    return config.n_layers * (config.width + feedforward)


def matrices(
    config: Config, estimates: Iterable[WeightEstimate], *, every: bool = False
) -> list[Weight]:
    """Return the weights of a model; equal calls of several layers are merged, with a count.

    Args:
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
            weights.append(Weight(n, k, scheme, str(i), head, layers, experts, chosen))
    return weights
