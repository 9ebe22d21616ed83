"""Granite 3 and 4 without experts: Llama with four multipliers, which the metadata specify.

Source: llama.cpp src/models/granite.cpp, MIT.
"""

from npurt.llm.arch.architecture import Architecture, RopePairs

ARCHITECTURE = Architecture("granite", RopePairs.ADJACENT)
