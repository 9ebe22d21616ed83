"""`Llama`: generate text with a model by sampling, with or without draft tokens.

This package may import all packages of `npurt.llm` except `engine`, `measure` and `convert`.  Read
`model`, the facade, first; then `text`, `generate`, which has the loop over tokens, and `step`.
"""
