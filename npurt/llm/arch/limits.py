"""How many rows a run of a model may have."""

from npurt.cpu.engine import MAX_CHUNKS, SCRATCH_FLOATS
from npurt.llm.config import Config


def most_rows(config: Config) -> int:
    """Return how many rows a run may have, so that a chunk of experts' products fits scratch."""
    if config.experts is None:
        return SCRATCH_FLOATS
    columns = config.experts.count * max(2 * config.experts.n_ff, config.width)
    return max(1, SCRATCH_FLOATS // max(-(-columns // MAX_CHUNKS), 16 * 8))
