"""nomic-embed-text v1 and v1.5: BERT with rotary positions and a gated unit, without biases.

Source: llama.cpp src/models/bert.cpp, conversion/bert.py (NomicBertModel), MIT.
"""

from npurt.llm.arch.architecture import Architecture, EncoderConventions, RopePairs

ARCHITECTURE = Architecture(
    "nomic-bert", RopePairs.HALVES, encoder=EncoderConventions(positions=False, gated=True)
)
