"""BERT, BGE, MiniLM, GTE, E5: encoders with learned positions, biases and GELU.

Positions begin at 0 in RoBERTa as well: the converter removes the rows of the earlier positions.
GELU is exact, as in transformers; llama.cpp uses the tanh approximation.
Source: llama.cpp src/models/bert.cpp, conversion/bert.py, MIT.
"""

from npurt.graph.ops import Activation
from npurt.llm.arch.architecture import Architecture, Encoder, Rope, Unit

ARCHITECTURE = Architecture(
    "bert",
    Rope.HALVES,  # unused: q and k do not rotate
    unit=Unit(Activation.GELU_ERF),
    encoder=Encoder(positions=True, gated=False),
)
