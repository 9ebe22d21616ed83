"""`Llama`: text from a model, by sampling, with or without drafts.

May import every room but `measure`.
Begin with `model`, the facade; then `text`, and `generate`, the loop over tokens.
"""
