"""BERT, BGE, MiniLM, GTE, E5: encoders with learned positions, biases and GELU.

Positions begin at 0 in RoBERTa as well: the converter removes the rows of the earlier positions.
GELU is exact, as in transformers; llama.cpp uses the tanh approximation.
Source: llama.cpp src/models/bert.cpp, conversion/bert.py, MIT.
"""

from npurt.graph.ops import Activation
from npurt.llm.arch.architecture import Architecture, EncoderConventions, RopePairs, UnitConventions

ARCHITECTURE = Architecture(
    "bert",
    RopePairs.HALVES,  # unused: q and k do not rotate
    unit=UnitConventions(Activation.GELU_ERF),
    encoder=EncoderConventions(positions=True, gated=False),
)
