"""Qwen3.5 and 3.6 with experts.

Source: llama.cpp src/models/qwen35moe.cpp, MIT.
"""

from dataclasses import replace

from npurt.llm.arch.architecture import Mixture
from npurt.llm.arch.families import qwen35

ARCHITECTURE = replace(
    qwen35.ARCHITECTURE, name="qwen35moe", mixture=Mixture(normed=True, shared=True)
)
