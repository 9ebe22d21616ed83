"""Convert between text and token ids, and render chat templates in a metered sandbox.

May import the subpackage `file`.
Begin with `tokenizer`; `chat` renders chat templates, and `sandbox` limits their time and memory.
"""
