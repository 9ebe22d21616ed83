"""`Llama`: generate text with a model by sampling, with or without draft tokens.

This package may import all packages of `npurt.llm` except `measure`.  Read `model`, the facade,
first; then `text`, and `generate`, which has the loop over tokens.
"""
