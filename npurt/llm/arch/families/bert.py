"""BERT and its relatives: BGE, MiniLM, GTE, E5.  Learned positions, biases, GELU.

RoBERTa's positions begin at 0 too: the converter leaves out the rows before.  GELU is exact, as in
transformers; llama.cpp takes the form with tanh.
Source: llama.cpp src/models/bert.cpp, conversion/bert.py, MIT.
"""

from npurt.graph.ops import Activation
from npurt.llm.arch.architecture import Architecture, Encoder, Rope, Unit

ARCHITECTURE = Architecture(
    "bert",
    Rope.HALVES,  # nothing rotates
    unit=Unit(Activation.GELU_ERF),
    encoder=Encoder(positions=True, gated=False),
)
