"""Draw with the usual samplers in one call of C, which gives the same tokens faster."""

from npurt.llm.decode.samplers.candidates import Ids
from npurt.llm.decode.samplers.chain import filters
from npurt.llm.decode.samplers.in_c import Draw, compiled
from npurt.llm.decode.samplers.min_p import min_p
from npurt.llm.decode.samplers.settings import Sampling
from npurt.llm.decode.samplers.temperature import temperature
from npurt.llm.decode.samplers.top_k import FEW, top_k
from npurt.llm.decode.samplers.top_p import top_p

IN_C: set[object] = {top_k, top_p, min_p, temperature}


def drawn_in_c(s: Sampling, never: Ids) -> Draw | None:
    """Return the function of C that draws with the filters of *s*; None if there is none.

    Args:
        s: The sampling settings; C ignores those that change logits.
        never: Ids that are never drawn, in ascending order.
    """
    steps = {getattr(step, "func", step) for step in filters(s)}
    few = 0 < s.top_k <= FEW or (s.top_k == 0 and steps & {top_p, min_p})
    if not (few and steps <= IN_C and compiled()):
        return None
    return Draw(never, top_k=s.top_k, top_p=s.top_p, min_p=s.min_p, temperature=s.temperature)
