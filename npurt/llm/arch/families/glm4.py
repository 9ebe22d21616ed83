"""GLM-4: half of each head rotates in adjacent pairs; sandwich norms; fused gate and up.

Sources: llama.cpp src/models/glm4.cpp, conversion/glm.py, MIT.
"""

from npurt.llm.arch.architecture import Architecture, Norms, RopePairs

ARCHITECTURE = Architecture(
    "glm4",
    RopePairs.ADJACENT,
    norms=Norms(after_mixer="post_attention_norm", after_ffn="post_ffw_norm"),
)
